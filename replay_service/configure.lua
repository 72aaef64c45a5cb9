-- Open the pool with the configuration A.cfg (packed), creating it if need be, or, without one, join it as it is.
-- What the pool holds follows a change: weights, reuse, ranks of eviction, room, and whether a task keeps its newest group only.
-- A changed flow rule starts afresh from what the pool holds, so that a restored pool owes no backlog. A.reset: start it afresh
-- in any case. A.carry: do not; what is owed or ahead by the old rule stays so. A.shards: over how many servers the caller
-- spreads payloads.
-- Returns status same | changed | unconfigured | resharded, and the configuration that holds.
local blob = A.cfg or S.cfg
if not blob then return reply({ status = 'unconfigured' }) end
local before, wanted = cfg, cmsgpack.unpack(blob)
if before and A.shards and before.shards ~= A.shards and get('groups') > 0 then
  return reply({ status = 'resharded', have = before.shards })
end
if before and S.cfg == blob and not A.reset then return reply({ status = 'same', cfg = blob }) end

-- Gids in order of arrival.
local function by_age()
  local groups = {}
  for _, gid in ipairs(call('HKEYS', M)) do groups[#groups + 1] = { gid, load_meta(gid).seq } end
  table.sort(groups, function(a, b) return a[2] < b[2] end)
  return groups
end

-- Remove the groups that have been used as often as they may, except those that a learner holds.
local function retire()
  for _, gid in ipairs(call('HKEYS', M)) do
    local m = load_meta(gid)
    if cfg.max_uses > 0 and m.uses >= cfg.max_uses and m.leases == 0 then
      remove(gid, m)
      bump('retired', 1)
    end
  end
end

local surplus = before and arrived() - due() or 0
set('cfg', blob)
if wanted.cooldown == 0 then call('DEL', COOL) end
if before and (before.alpha ~= wanted.alpha or before.half_life ~= wanted.half_life or before.eviction ~= wanted.eviction
  or before.max_uses ~= wanted.max_uses or before.cooldown ~= wanted.cooldown) then
  rekey(wanted, math.max(get('ver'), get('top')))
end
cfg = wanted
if before then
  if before.max_uses ~= cfg.max_uses then retire() end
  if not cfg.newest then
    call('DEL', TASK)
  elseif not before.newest then
    call('DEL', TASK)
    for _, group in ipairs(by_age()) do keep_newest(group[1], load_meta(group[1])) end
  end
  evict()
end
if A.reset or not before or before.warmup ~= cfg.warmup or before.freq ~= cfg.freq then
  local ahead = math.min(get('traj') - cfg.warmup, 0)
  if A.carry and before then ahead = surplus end
  set('ins0', get('ins') - cfg.warmup - ahead)
  set('draws0', get('draws'))
end
return reply({ status = 'changed', cfg = blob })
