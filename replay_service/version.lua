-- The learner is at version A.version; drops what has become too stale.
if not cfg then return reply({ status = 'unconfigured' }) end
set('ver', A.version)
local stale = drop_stale(100000)
rebase_if_needed()
return reply({ status = 'ok', stale = stale })
