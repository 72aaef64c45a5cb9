-- Give group A.gid another payload, A.bytes long, and priority A.p, under the mark A.mark; A.draw is a spare Exp(1) draw. The
-- payload is A.payload where it lies beside the index; elsewhere it is written between a call with A.probe and the one without.
-- With A.leased_too no learner is at work, so that leases stand in nobody's way.
-- Returns status ok | done (it has that mark already) | leased (a learner trains on it) | dropped (no gradient) | gone.
if not cfg then return reply({ status = 'unconfigured' }) end
local m = load_meta(A.gid)
if not m then return reply({ status = 'gone' }) end
if call('HGET', MARK, A.gid) == A.mark then return reply({ status = 'done' }) end
if m.leases > 0 and not A.leased_too then return reply({ status = 'leased' }) end
if A.p <= 0 then
  remove(A.gid, m)
  bump('zero_variance', 1)
  return reply({ status = 'dropped' })
end
if A.probe then return reply({ status = 'ok' }) end

if A.payload then call('SET', P .. 'g:' .. A.gid, A.payload) end
local before = weight(m.p, m.vmin)
local residual = displace(A.gid, m) or m.res
local after = weight(A.p, m.vmin)
residual = before > 0 and residual * before / after or A.draw / after
bump('bytes', A.bytes - m.bytes)
m.p, m.bytes = A.p, A.bytes
place(A.gid, m, residual)
save_meta(A.gid, m)
if cfg.eviction == 'utility' then rank(A.gid, m) end
call('HSET', MARK, A.gid, A.mark)
return reply({ status = 'ok' })
