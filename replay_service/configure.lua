-- Make A.cfg (packed) the pool's configuration, creating the pool if need be. Weights follow a changed exponent or half-life; a
-- changed flow rule starts afresh from what the pool holds, so that a restored pool asks for no backlog.
-- A.reset: start the flow rule afresh in any case. Returns whether anything changed.
local wanted = cmsgpack.unpack(A.cfg)
local before = cfg
if before and S.cfg == A.cfg and not A.reset then return reply({ changed = false }) end
cfg = wanted
set('cfg', A.cfg)
if before and (before.alpha ~= wanted.alpha or before.half_life ~= wanted.half_life) then
  rekey(before, wanted, get('ver'))
end
if A.reset or not before or before.warmup ~= wanted.warmup or before.freq ~= wanted.freq then
  set('ins0', get('ins') - math.min(get('traj'), wanted.warmup))
  set('draws0', get('draws'))
end
return reply({ changed = true })
