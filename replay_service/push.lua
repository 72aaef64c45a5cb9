-- Index a group whose payload the same MULTI has just SET (NX, with an expiry that acceptance removes).
-- A: gid, n, tokens, bytes, vmin, vmax, p, draw, wins, task; import when the group comes from a file, hence not from an actor,
-- and waits for nobody. Returns status ok | dup | stale | throttle and what was evicted.
if not cfg then return reply({ status = 'unconfigured' }) end
local payload = P .. 'g:' .. A.gid

local indexed = call('HEXISTS', M, A.gid) == 1
if indexed or (not A.import and call('ZSCORE', IDS, A.gid)) then
  if indexed then call('PERSIST', payload) else call('UNLINK', payload) end
  bump('duplicates', 1)
  return reply({ status = 'dup', indexed = indexed })
end
if cfg.max_stale >= 0 and get('ver') - A.vmin > cfg.max_stale then
  call('UNLINK', payload)
  bump('stale_refused', 1)
  return reply({ status = 'stale', have = get('ver') - A.vmin, need = cfg.max_stale })
end
-- While a learner is starved, pushes pass: groups that cannot be sampled would fill the allowance, and both would wait.
if not A.import and cfg.freq > 0 and arrived() > due() + cfg.ahead and eligible() >= get('want') then
  call('UNLINK', payload)
  bump('push_waits', 1)
  return reply({ status = 'throttle', have = arrived(), need = due() + cfg.ahead })
end
if A.n > cfg.capacity or (cfg.bytes > 0 and A.bytes > cfg.bytes) then
  call('UNLINK', payload)
  return reply({ status = 'toolarge' })
end

bump('seq', 1)
call('ZADD', IDS, S.seq, A.gid)
call('ZREMRANGEBYRANK', IDS, 0, -cfg.remember - 1)
bump('ins', A.n)
if A.import then bump('ins0', A.n) end
bump('wins', A.wins)
if A.p <= 0 then
  call('UNLINK', payload)
  bump('zero_variance', 1)
  return reply({ status = 'ok', evicted = 0 })
end

local m = { p = A.p, seq = S.seq, at = now_ms() / 1000, res = 0, div = 0, vmin = A.vmin, vmax = A.vmax, n = A.n,
  tokens = A.tokens, bytes = A.bytes, uses = 0, leases = 0, wins = A.wins, task = A.task }
call('PERSIST', payload)
if cfg.shards > 0 then call('ZREM', GC, A.gid) end
if m.vmin > get('top') then
  set('top', m.vmin)
  rebase_if_needed()
end
if cfg.newest then
  local older = call('HGET', TASK, A.task)
  if older then
    remove(older, load_meta(older))
    bump('superseded', 1)
  end
  call('HSET', TASK, A.task, A.gid)
end
place(A.gid, m, A.draw / weight(m.p, m.vmin))
save_meta(A.gid, m)
rank(A.gid, m)
call('ZADD', VER, m.vmin, A.gid)
call('HINCRBY', VH, m.vmin, 1)
bump('groups', 1)
bump('traj', m.n)
bump('tokens', m.tokens)
bump('bytes', m.bytes)

local evicted = 0
while (S.traj > cfg.capacity or (cfg.bytes > 0 and S.bytes > cfg.bytes)) and evicted < 64 do
  local victim = call('ZRANGE', EV, 0, 0)[1]
  remove(victim, load_meta(victim))
  evicted = evicted + 1
end
if evicted > 0 then bump('evicted', evicted) end
return reply({ status = 'ok', evicted = evicted, garbage = cfg.shards > 0 and call('ZCARD', GC) or nil })
