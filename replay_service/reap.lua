-- Give back leases that have ended and drop groups that are too stale, up to A.limit each.
if not cfg then return reply({ status = 'unconfigured' }) end
return reply({ status = 'ok', leases = reap(A.limit), stale = drop_stale(A.limit) })
