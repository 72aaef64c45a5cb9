-- The learner is at version A.version; drops what has become too stale and, every clear_every versions, the oldest share.
-- A.drop_newer: also the groups with a token of a later version.
if not cfg then return reply({ status = 'unconfigured' }) end
set('ver', A.version)
local stale = drop_stale(100000)

local newer = 0
if A.drop_newer then
  for _, gid in ipairs(call('HKEYS', M)) do
    local m = load_meta(gid)
    if m.vmax > A.version then
      remove(gid, m)
      newer = newer + 1
    end
  end
  bump('pruned', newer)
end

if cfg.clear_every > 0 then
  if A.version < get('cleared_at') then set('cleared_at', A.version) end
  if A.version - get('cleared_at') >= cfg.clear_every then
    local groups = {}
    for _, gid in ipairs(call('HKEYS', M)) do groups[#groups + 1] = { gid, load_meta(gid) } end
    table.sort(groups, function(a, b) return a[2].seq < b[2].seq end)
    local share = math.floor(#groups * cfg.clear_share)
    for i = 1, share do remove(groups[i][1], groups[i][2]) end
    bump('cleared', share)
    set('cleared_at', A.version)
  end
end
local newest = call('ZREVRANGE', VER, 0, 0, 'WITHSCORES')
set('top', tonumber(newest[2] or A.version))
rebase_if_needed()
return reply({ status = 'ok', stale = stale, newer = newer })
