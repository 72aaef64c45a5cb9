-- Draw A.k groups as batch A.batch under a lease; A.draws holds k packed Exp(1) doubles.
-- Returns {status = 'ok' | 'again', plan = packed plan} or {status = 'wait', reason, have, need}.
if not cfg then return reply({ status = 'unconfigured' }) end
local stored = call('GET', P .. 'b:' .. A.batch)
if stored then return reply({ status = 'again', plan = stored }) end

reap(8)
if drop_stale(4096) == 4096 then return reply({ status = 'wait', reason = 'stale', have = eligible(), need = A.k }) end
rebase_if_needed()
if cfg.cooldown > 0 then
  for _, gid in ipairs(call('ZRANGEBYSCORE', COOL, '-inf', get('draws'))) do
    call('ZREM', COOL, gid)
    local m = load_meta(gid)
    place(gid, m, m.res)
  end
end
if cfg.freq > 0 or get('draws') == get('draws0') then
  if arrived() < due() then
    bump('sample_waits', 1)
    return reply({ status = 'wait', reason = 'inserted', have = arrived(), need = due() })
  end
end
local pool = eligible()
if pool < A.k then
  set('want', A.k)
  bump('sample_waits', 1)
  return reply({ status = 'wait', reason = 'eligible', have = pool, need = A.k })
end

-- The next events of an index as {gid, residual}: up to rank `last`, without the first `skip`.
local function upcoming(index, clock, last, skip)
  local raw, events = call('ZRANGE', index, skip or 0, last - 1, 'WITHSCORES'), {}
  for i = 1, #raw, 2 do events[#events + 1] = { raw[i], tonumber(raw[i + 1]) - get(clock) } end
  return events
end

local function merge(a, b)
  local merged, i, j = {}, 1, 1
  while a[i] or b[j] do
    if not b[j] or (a[i] and a[i][2] <= b[j][2]) then
      merged[#merged + 1], i = a[i], i + 1
    else
      merged[#merged + 1], j = b[j], j + 1
    end
  end
  return merged
end

-- Whatever fell within an exposure was drawn, which gives inclusion probabilities; a negative one says that all was.
local function certain(exposure, extra) return (exposure < 0 or extra < 0) and -1 or exposure + extra end

if dirty.mass then settle() end
local mass, drawn = get('mass'), {}
local quota = math.min(math.floor(cfg.fresh * A.k + 0.5), call('ZCARD', NEW))
local reached, passed = 0, 0
if quota > 0 then
  local events = upcoming(NEW, 'now_new', quota + 1)
  for i = 1, quota do drawn[i] = { events[i][1], true } end
  reached = math.max(events[quota][2], 0)
  passed = events[quota + 1] and events[quota + 1][2] or -1
  bump('now_new', reached)
end
local rest, horizon = A.k - quota, 0
if rest > 0 then
  local events = merge(upcoming(NEW, 'now_new', A.k + 1, quota), upcoming(CLK, 'now_clk', rest + 1))
  for i = 1, rest do drawn[quota + i] = { events[i][1], false } end
  local tau = math.max(events[rest][2], 0)
  horizon = events[rest + 1] and events[rest + 1][2] or -1
  bump('now_new', tau)
  bump('now_clk', tau)
end

local entries, total = {}, 0
for i = 1, A.k do
  local gid, by_quota = drawn[i][1], drawn[i][2]
  local m = load_meta(gid)
  local w = weight(m.p, m.vmin)
  local exposure = certain(m.uses > 0 and 0 or by_quota and passed or reached, horizon)
  entries[i] = { gid, w, m.p, m.vmin, m.vmax, m.n, m.tokens, m.bytes, m.uses, exposure }
  total = total + m.n
  displace(gid, m)
  m.uses = m.uses + 1
  m.leases = m.leases + 1
  if cfg.cooldown > 0 then call('ZADD', COOL, get('draws') + 1 + cfg.cooldown, gid) end
  place(gid, m, struct.unpack('<d', A.draws, 8 * i - 7) / w)
  save_meta(gid, m)
end

local plan = cmsgpack.pack({ entries = entries, pool = pool, mass = mass, version = get('ver'), number = get('draws') })
bump('draws', 1)
bump('sampled', total)
set('want', 0)
call('SET', P .. 'b:' .. A.batch, plan)
call('ZADD', LS, now_ms() + cfg.lease_ms, A.batch)
return reply({ status = 'ok', plan = plan })
