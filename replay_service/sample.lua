-- Draw A.k groups as batch A.batch under a lease; A.draws holds k packed Exp(1) doubles.
-- Returns {status = 'ok' | 'again', plan = packed plan} or {status = 'wait', reason, have, need}.
if not cfg then return reply({ status = 'unconfigured' }) end
local stored = call('GET', P .. 'b:' .. A.batch)
if stored then return reply({ status = 'again', plan = stored }) end

reap(8)
if drop_stale(4096) == 4096 then return reply({ status = 'wait', reason = 'stale', have = eligible(), need = A.k }) end
rebase_if_needed()
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

-- The next events of an index as {gid, residual}.
local function upcoming(index, clock, count)
  local raw, events = call('ZRANGE', index, 0, count - 1, 'WITHSCORES'), {}
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

local mass = get('mass')
local events = merge(upcoming(NEW, 'now_new', A.k + 1), upcoming(CLK, 'now_clk', A.k + 1))
local tau = math.max(events[A.k][2], 0)
-- Everything within this exposure was drawn: gives inclusion probabilities; -1 when the whole pool was.
local horizon = events[A.k + 1] and events[A.k + 1][2] or -1
bump('now_new', tau)
bump('now_clk', tau)

local entries, total = {}, 0
for i = 1, A.k do
  local gid = events[i][1]
  local m = load_meta(gid)
  local w = weight(m.p, m.vmin)
  entries[i] = { gid, w, m.p, m.vmin, m.vmax, m.n, m.tokens, m.bytes, m.uses }
  total = total + m.n
  displace(gid, m)
  m.uses = m.uses + 1
  m.leases = m.leases + 1
  place(gid, m, struct.unpack('<d', A.draws, 8 * i - 7) / w)
  save_meta(gid, m)
end

bump('draws', 1)
bump('sampled', total)
set('want', 0)
local plan = cmsgpack.pack({ entries = entries, pool = pool, mass = mass, horizon = horizon, version = get('ver') })
call('SET', P .. 'b:' .. A.batch, plan)
call('ZADD', LS, now_ms() + cfg.lease_ms, A.batch)
return reply({ status = 'ok', plan = plan })
