-- Prepended to every script by scripts.py: key layout, pool state, and the operations on one group that scripts share.
--
-- KEYS[1] is '{namespace}:st'; every other key is derived from it and shares its hash tag, hence its cluster slot:
--   :st       HASH    configuration blob, counters, both clocks, weight base, learner version
--   :g:<gid>  STRING  payload of a group (cacherl/codec.py)
--   :in:<gid> STRING  payload on its way in, within one MULTI
--   :m        HASH    gid -> packed meta (FORMAT below)
--   :new      ZSET    gid -> next event time, groups never sampled
--   :clk      ZSET    gid -> next event time, groups sampled before
--   :ev       ZSET    gid -> rank of eviction, lowest first
--   :ver      ZSET    gid -> lowest policy version
--   :vh       HASH    lowest policy version -> number of groups
--   :cool     ZSET    gid -> number of batches drawn from which it may be sampled again
--   :task     HASH    task -> its newest group; exists only while newest_per_task is on
--   :mk       HASH    gid -> mark of the reward that it was last re-scored with
--   :gc       ZSET    gid -> unix ms from which its payload on another endpoint may be deleted
--   :ids      ZSET    gid -> sequence number of the most recent pushes, so that a repeated one is recognised
--   :ls       ZSET    batch -> unix time at which its lease ends, in ms
--   :b:<b>    STRING  plan of a batch, for every rank that asks for it
--   :a:<b>    HASH    ranks that acknowledged the batch
--
-- Sampling. A group of weight w has its next event Exp(1)/w after the clock of its index; the k next events are an exact
-- weighted sample without replacement, and time moves on to the last of them. Residuals are memoryless: those of both indices
-- may be merged, and a changed weight rescales a residual by w_old/w_new. A group's weight is
-- clamp(p^alpha) * 2^((version - base)/half_life): the older decay relative to the newer without being touched. Scripts
-- draw no random numbers: callers send Exp(1) draws.

local call = redis.call
local A = cmsgpack.unpack(ARGV[1])
local P = string.sub(KEYS[1], 1, -3)
local ST, M, NEW, CLK, EV, VER, VH = KEYS[1], P .. 'm', P .. 'new', P .. 'clk', P .. 'ev', P .. 'ver', P .. 'vh'
local IDS, LS, COOL, TASK, GC, MARK = P .. 'ids', P .. 'ls', P .. 'cool', P .. 'task', P .. 'gc', P .. 'mk'
-- priority, sequence, unix s of the push, residual kept while not indexed, divergence, lowest and highest version,
-- trajectories, tokens, bytes, uses, open leases, successes; then the task id
local FORMAT = '<dddddi4i4I4I4I4I4I4I4'
local HEAD = 72
local OLDEST_HALVINGS = 40
local REBASE_HALVINGS = 16
local REBASE_CLOCK = 16384
local LARGEST_CANCELLATION = 1e-6

local S, dirty = {}, {}
do
  local raw = call('HGETALL', ST)
  for i = 1, #raw, 2 do S[raw[i]] = tonumber(raw[i + 1]) or raw[i + 1] end
end
local cfg = S.cfg and cmsgpack.unpack(S.cfg)

local function get(name) return S[name] or 0 end

local function set(name, value)
  S[name] = value
  dirty[name] = true
end

local function bump(name, amount) set(name, get(name) + amount) end

local settle

-- Write the changed state and answer; numbers go out with all their digits.
local function reply(answer)
  if dirty.mass then settle() end
  local args = {}
  for name in pairs(dirty) do
    args[#args + 1] = name
    args[#args + 1] = type(S[name]) == 'number' and string.format('%.17g', S[name]) or S[name]
  end
  if #args > 0 then call('HSET', ST, unpack(args)) end
  return cmsgpack.pack(answer)
end

local function now_ms()
  local time = call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function load_meta(gid)
  local raw = call('HGET', M, gid)
  if not raw then return nil end
  local m = {}
  m.p, m.seq, m.at, m.res, m.div, m.vmin, m.vmax, m.n, m.tokens, m.bytes, m.uses, m.leases, m.wins = struct.unpack(FORMAT, raw)
  m.task = string.sub(raw, HEAD + 1)
  return m
end

local function save_meta(gid, m)
  call('HSET', M, gid, struct.pack(FORMAT, m.p, m.seq, m.at, m.res, m.div, m.vmin, m.vmax, m.n, m.tokens, m.bytes, m.uses,
    m.leases, m.wins) .. m.task)
end

local function clamped(p, alpha) return math.min(math.max(p ^ alpha, 1e-6), 1e6) end

local function weight_under(config, base, p, version)
  if p <= 0 then return 0 end
  local w = clamped(p, config.alpha)
  if config.half_life > 0 then
    w = w * 2 ^ math.max((version - base) / config.half_life, -OLDEST_HALVINGS)
  end
  return w
end

local function weight(p, version) return weight_under(cfg, get('base'), p, version) end

-- Key and clock of the index that a group belongs to.
local function index_of(m)
  if m.uses == 0 then return NEW, 'now_new' end
  return CLK, 'now_clk'
end

local function eligible() return call('ZCARD', NEW) + call('ZCARD', CLK) end

local function add_mass(w)
  bump('mass', w)
  if S.mass > get('peak') then set('peak', S.mass) end
end

-- After changes to the indices: the clock of an empty one starts again at 0, and a mass of which so much has been taken away
-- that rounding shows is added up anew.
function settle()
  local fresh, used = call('ZCARD', NEW), call('ZCARD', CLK)
  if fresh == 0 then set('now_new', 0) end
  if used == 0 then set('now_clk', 0) end
  if fresh + used > 0 and get('mass') >= LARGEST_CANCELLATION * get('peak') then return end
  local mass = 0
  for _, index in ipairs({ NEW, CLK }) do
    for _, gid in ipairs(call('ZRANGE', index, 0, -1)) do
      local m = load_meta(gid)
      mass = mass + weight(m.p, m.vmin)
    end
  end
  set('mass', mass)
  set('peak', mass)
end

-- Put a group into its index, `residual` after the clock; nothing if it may not be sampled (any more).
local function place(gid, m, residual)
  m.res = residual
  if m.p <= 0 or (cfg.max_uses > 0 and m.uses >= cfg.max_uses) then return end
  if cfg.cooldown > 0 and call('ZSCORE', COOL, gid) then return end
  local index, clock = index_of(m)
  call('ZADD', index, string.format('%.17g', get(clock) + residual), gid)
  add_mass(weight(m.p, m.vmin))
end

-- Take a group out of its index; returns its residual, or nil if it was not there.
local function displace(gid, m)
  local index, clock = index_of(m)
  local score = call('ZSCORE', index, gid)
  if not score then return nil end
  call('ZREM', index, gid)
  add_mass(-weight(m.p, m.vmin))
  return math.max(tonumber(score) - get(clock), 0)
end

-- Rank of eviction, lowest first. Ties go to the older; a utility is a base-free log2 of the weight.
local AGES = 1e8
local function rank_of(m)
  if cfg.eviction == 'stalest' then return m.vmin * AGES + m.seq % AGES end
  if cfg.eviction == 'divergent' then return -math.floor(math.min(m.div, 800) * 1e5) * AGES + m.seq % AGES end
  if cfg.eviction == 'utility' then
    if m.p <= 0 then return -1e9 end
    return math.log(clamped(m.p, cfg.alpha)) / math.log(2) + (cfg.half_life > 0 and m.vmin / cfg.half_life or 0)
  end
  return m.seq
end

local function rank(gid, m) call('ZADD', EV, string.format('%.17g', rank_of(m)), gid) end

-- Free a payload; that of a group which a learner holds once its lease must have ended.
local function free_payload(gid, m)
  if cfg.shards > 0 then
    call('ZADD', GC, m.leases > 0 and now_ms() + cfg.lease_ms or 0, gid)
  elseif m.leases > 0 then
    call('PEXPIRE', P .. 'g:' .. gid, cfg.lease_ms)
  else
    call('UNLINK', P .. 'g:' .. gid)
  end
end

-- Forget a group.
local function remove(gid, m)
  displace(gid, m)
  call('HDEL', M, gid)
  call('ZREM', EV, gid)
  call('ZREM', VER, gid)
  call('ZREM', COOL, gid)
  call('HDEL', MARK, gid)
  if cfg.newest and call('HGET', TASK, m.task) == gid then call('HDEL', TASK, m.task) end
  if call('HINCRBY', VH, m.vmin, -1) <= 0 then call('HDEL', VH, m.vmin) end
  bump('groups', -1)
  bump('traj', -m.n)
  bump('tokens', -m.tokens)
  bump('bytes', -m.bytes)
  free_payload(gid, m)
end

-- Give every group the residual, rank and index that another base or configuration asks for, and set both clocks to 0.
-- O(groups); needed once in REBASE_HALVINGS half-lives.
local function rekey(new_cfg, new_base)
  local old_cfg, old_base, clocks = cfg, get('base'), { now_new = get('now_new'), now_clk = get('now_clk') }
  cfg = new_cfg
  set('base', new_base)
  set('now_new', 0)
  set('now_clk', 0)
  set('mass', 0)
  set('peak', 0)
  for _, gid in ipairs(call('HKEYS', M)) do
    local m = load_meta(gid)
    local index, clock = index_of(m)
    local score = call('ZSCORE', index, gid)
    local residual = score and math.max(tonumber(score) - clocks[clock], 0) or m.res
    local before, after = weight_under(old_cfg, old_base, m.p, m.vmin), weight(m.p, m.vmin)
    if before > 0 then residual = residual * before / after end
    if score then call('ZREM', index, gid) end
    place(gid, m, residual)
    save_meta(gid, m)
    if old_cfg.eviction ~= new_cfg.eviction or new_cfg.eviction == 'utility' then rank(gid, m) end
  end
end

-- Keep weights and clocks within what doubles resolve. `top` is the highest version among the groups, which may be ahead of a
-- learner that has gone back to a checkpoint.
local function rebase_if_needed()
  local newest = math.max(get('ver'), get('top'))
  local far = cfg.half_life > 0 and math.abs(newest - get('base')) >= REBASE_HALVINGS * cfg.half_life
  if far or math.max(get('now_new'), get('now_clk')) > REBASE_CLOCK then rekey(cfg, newest) end
end

-- Drop the groups that rank lowest until the others fit; returns how many.
local function evict()
  local evicted = 0
  while get('traj') > cfg.capacity or (cfg.bytes > 0 and get('bytes') > cfg.bytes) do
    local victim = call('ZRANGE', EV, 0, 0)[1]
    if not victim then break end
    remove(victim, load_meta(victim))
    evicted = evicted + 1
  end
  if evicted > 0 then bump('evicted', evicted) end
  return evicted
end

-- Of the groups of a task that the pool holds, keep the newest.
local function keep_newest(gid, m)
  local older = call('HGET', TASK, m.task)
  local before = older and load_meta(older)
  if before then
    remove(older, before)
    bump('superseded', 1)
  end
  call('HSET', TASK, m.task, gid)
end

-- Drop up to `limit` groups that are staler than allowed; returns how many.
local function drop_stale(limit)
  if cfg.max_stale < 0 then return 0 end
  local last = get('ver') - cfg.max_stale - 1
  local gids = call('ZRANGEBYSCORE', VER, '-inf', last, 'LIMIT', 0, limit)
  for _, gid in ipairs(gids) do remove(gid, load_meta(gid)) end
  bump('stale_dropped', #gids)
  return #gids
end

-- Trajectories that must have been inserted before the next batch may be drawn.
local function due() return cfg.warmup + (get('draws') - get('draws0')) * cfg.freq end

local function arrived() return get('ins') - get('ins0') end

-- End a lease. An expired one is as if it had never been drawn: credit and uses are given back.
local function release(batch, expired)
  call('ZREM', LS, batch)
  local plan = cmsgpack.unpack(call('GET', P .. 'b:' .. batch))
  for _, entry in ipairs(plan.entries) do
    if expired then bump('sampled', -entry[6]) end
    local m = load_meta(entry[1])
    if m then
      m.leases = math.max(m.leases - 1, 0) -- a group that was removed and imported again has none
      if expired then
        local residual = displace(entry[1], m) or m.res
        m.uses = math.max(m.uses - 1, 0)
        call('ZREM', COOL, entry[1])
        place(entry[1], m, residual)
      end
      if m.leases == 0 and cfg.max_uses > 0 and m.uses >= cfg.max_uses then
        remove(entry[1], m)
        bump('retired', 1)
      else
        save_meta(entry[1], m)
      end
    end
  end
  if expired then
    call('DEL', P .. 'b:' .. batch, P .. 'a:' .. batch)
    bump('draws', -1)
    bump('expired', 1)
  else
    call('PEXPIRE', P .. 'b:' .. batch, 4 * cfg.lease_ms)
    call('PEXPIRE', P .. 'a:' .. batch, 4 * cfg.lease_ms)
  end
end

-- Give back up to `limit` leases that have ended; returns how many.
local function reap(limit)
  local batches = call('ZRANGEBYSCORE', LS, '-inf', now_ms(), 'LIMIT', 0, limit)
  for _, batch in ipairs(batches) do release(batch, true) end
  return #batches
end
