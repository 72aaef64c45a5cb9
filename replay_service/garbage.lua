-- Up to A.limit groups whose payloads on other endpoints may be deleted by now.
if not cfg then return reply({ status = 'unconfigured' }) end
return reply({ status = 'ok', gids = call('ZRANGEBYSCORE', GC, '-inf', now_ms(), 'LIMIT', 0, A.limit) })
