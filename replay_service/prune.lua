-- Drop groups A.gids; returns how many there were.
if not cfg then return reply({ status = 'unconfigured' }) end
local pruned = 0
for _, gid in ipairs(A.gids) do
  local m = load_meta(gid)
  if m then
    remove(gid, m)
    pruned = pruned + 1
  end
end
if pruned > 0 then bump('pruned', pruned) end
return reply({ status = 'ok', pruned = pruned })
