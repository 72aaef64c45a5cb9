-- Open the pool with the configuration A.cfg (packed), creating it if need be, or, without one, join it as it is.
-- Weights, reuse and ranks of eviction follow a change; a changed flow rule starts afresh from what the pool holds, so that a
-- restored pool owes no backlog. A.reset: start it afresh in any case. A.carry: do not; what is owed or ahead by the old rule
-- stays so. A.shards: over how many servers the caller spreads payloads. Returns status same | changed | unconfigured | resharded.
local blob = A.cfg or S.cfg
if not blob then return reply({ status = 'unconfigured' }) end
local before, wanted = cfg, cmsgpack.unpack(blob)
if before and A.shards and before.shards ~= A.shards and get('groups') > 0 then
  return reply({ status = 'resharded', have = before.shards })
end
if before and S.cfg == blob and not A.reset then return reply({ status = 'same' }) end

local surplus = before and arrived() - due() or 0
set('cfg', blob)
if wanted.cooldown == 0 then call('DEL', COOL) end
if not before then
  cfg = wanted
elseif before.alpha ~= wanted.alpha or before.half_life ~= wanted.half_life or before.eviction ~= wanted.eviction
  or before.max_uses ~= wanted.max_uses or before.cooldown ~= wanted.cooldown then
  rekey(wanted, math.max(get('ver'), get('top')))
end
if A.reset or not before or before.warmup ~= wanted.warmup or before.freq ~= wanted.freq then
  local ahead = math.min(get('traj') - wanted.warmup, 0)
  if A.carry and before then ahead = surplus end
  set('ins0', get('ins') - wanted.warmup - ahead)
  set('draws0', get('draws'))
end
return reply({ status = 'changed' })
