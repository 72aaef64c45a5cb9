-- Drop groups A.gids that are indexed without a payload (lost outside the service).
if not cfg then return reply({ status = 'unconfigured' }) end
local lost = 0
for _, gid in ipairs(A.gids) do
  local m = load_meta(gid)
  if m and call('EXISTS', P .. 'g:' .. gid) == 0 then
    remove(gid, m)
    lost = lost + 1
  end
end
if lost > 0 then bump('orphans', lost) end
return reply({ status = 'ok', lost = lost })
