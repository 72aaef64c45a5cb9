-- Acknowledge batch A.batch by A.rank of A.world ranks; A.gids with new priorities A.p, spare Exp(1) draws A.draws and, if
-- measured, divergences A.div (packed doubles). Returns status ok | dup | late.
if not cfg then return reply({ status = 'unconfigured' }) end
local acked = P .. 'a:' .. A.batch
if call('HEXISTS', acked, A.rank) == 1 then return reply({ status = 'dup' }) end
if not call('ZSCORE', LS, A.batch) then
  bump('late', 1)
  return reply({ status = 'late' })
end

for i, gid in ipairs(A.gids) do
  local m = load_meta(gid)
  if m then
    local new = struct.unpack('<d', A.p, 8 * i - 7)
    local before = weight(m.p, m.vmin)
    local residual = displace(gid, m) or m.res
    local after = weight(new, m.vmin)
    if before == 0 then residual = struct.unpack('<d', A.draws, 8 * i - 7) / math.max(after, 1e-300) end
    if before > 0 and after > 0 then residual = residual * before / after end
    m.p = new
    if A.div then m.div = struct.unpack('<d', A.div, 8 * i - 7) end
    place(gid, m, residual)
    save_meta(gid, m)
    if cfg.eviction == 'utility' or cfg.eviction == 'divergent' then rank(gid, m) end
  end
end
call('HSET', acked, A.rank, 1)
if call('HLEN', acked) >= A.world then release(A.batch, false) end
return reply({ status = 'ok' })
