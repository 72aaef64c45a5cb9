-- Drop groups A.gids whose payload was lost outside the service; A.sure when that endpoint was asked already.
if not cfg then return reply({ status = 'unconfigured' }) end
local lost = 0
for _, gid in ipairs(A.gids) do
  local m = load_meta(gid)
  if m and (A.sure or call('EXISTS', P .. 'g:' .. gid) == 0) then
    remove(gid, m)
    lost = lost + 1
  end
end
if lost > 0 then bump('orphans', lost) end
return reply({ status = 'ok', lost = lost })
