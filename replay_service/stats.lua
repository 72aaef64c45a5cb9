-- Counters of the pool as they are, in one piece, also when memory is full: nothing is written.
if not cfg then return reply({ status = 'unconfigured' }) end
local versions = {}
local raw = call('HGETALL', VH)
for i = 1, #raw, 2 do versions[#versions + 1] = { tonumber(raw[i]), tonumber(raw[i + 1]) } end
local counters = {}
for name, value in pairs(S) do
  if name ~= 'cfg' then counters[name] = string.format('%.17g', value) end
end
return reply({ status = 'ok', counters = counters, versions = versions, never_sampled = call('ZCARD', NEW),
  eligible = eligible(), leases = call('ZCARD', LS), due = due(), arrived = arrived() })
