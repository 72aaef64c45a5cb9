-- Index a group whose payload the same MULTI has just SET at ':in:<gid>': accepted, it moves to ':g:<gid>'; refused, it is
-- deleted, and what stands at ':g:<gid>', which a learner may hold, is left alone. Payloads on shards are the caller's to keep.
-- A: gid, n, tokens, bytes, vmin, vmax, p, draw, wins, task; import when the group comes from a file, hence not from an actor,
-- and waits for nobody; ask when nothing was SET: the answer is what a push would get, or 'admitted'.
-- Returns status ok | dup | stale | throttle | toolarge | admitted, whether the payload is to be kept, and what was evicted.
if not cfg then return reply({ status = 'unconfigured' }) end
local incoming, payload = P .. 'in:' .. A.gid, P .. 'g:' .. A.gid

local function refuse(answer)
  call('UNLINK', incoming)
  return reply(answer)
end

local indexed = call('HEXISTS', M, A.gid) == 1
if indexed or (not A.import and call('ZSCORE', IDS, A.gid)) then
  bump('duplicates', 1)
  if indexed and call('EXISTS', incoming) == 1 and call('RENAMENX', incoming, payload) == 1 then call('PERSIST', payload) end
  return refuse({ status = 'dup', kept = indexed })
end
if cfg.max_stale >= 0 and get('ver') - A.vmin > cfg.max_stale then
  bump('stale_refused', 1)
  return refuse({ status = 'stale', have = get('ver') - A.vmin, need = cfg.max_stale })
end
-- While a learner is starved, pushes pass: groups that cannot be sampled would fill the allowance, and both would wait.
if not A.import and cfg.freq > 0 and arrived() > due() + cfg.ahead and eligible() >= get('want') then
  bump('push_waits', 1)
  return refuse({ status = 'throttle', have = arrived(), need = due() + cfg.ahead })
end
if A.n > cfg.capacity or (cfg.bytes > 0 and A.bytes > cfg.bytes) then return refuse({ status = 'toolarge' }) end
if A.ask then return reply({ status = 'admitted' }) end

-- An error does not undo what a script has written: the group counts as known, and its payload as claimed, when all is done.
local function accept(answer)
  call('ZADD', IDS, S.seq, A.gid)
  call('ZREMRANGEBYRANK', IDS, 0, -cfg.remember - 1)
  return reply(answer)
end

bump('seq', 1)
bump('ins', A.n)
if A.import then bump('ins0', A.n) end
bump('wins', A.wins)
if A.p <= 0 then
  call('UNLINK', incoming)
  bump('zero_variance', 1)
  return accept({ status = 'ok', evicted = 0 })
end

local m = { p = A.p, seq = S.seq, at = now_ms() / 1000, res = 0, div = 0, vmin = A.vmin, vmax = A.vmax, n = A.n,
  tokens = A.tokens, bytes = A.bytes, uses = 0, leases = 0, wins = A.wins, task = A.task }
if m.vmin > get('top') then
  set('top', m.vmin)
  rebase_if_needed()
end
if cfg.newest then keep_newest(A.gid, m) end
if cfg.shards > 0 then
  call('ZREM', GC, A.gid)
else
  call('RENAME', incoming, payload)
  call('PERSIST', payload)
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
return accept({ status = 'ok', kept = true, evicted = evict(), garbage = cfg.shards > 0 and call('ZCARD', GC) or nil })
