-- The result of a call, and note its use. KEYS as in put.lua; ARGV: name, 'exact' or 'normalised', prefix of the bucket keys.
local exact = ARGV[1]
if ARGV[2] == 'normalised' then exact = redis.call('HGET', KEYS[4], exact) end
if not exact then return false end
local result = redis.call('HGET', KEYS[1], exact)
if not result then return false end
local tick = redis.call('HINCRBY', KEYS[5], 'tick', 1)
redis.call('ZADD', KEYS[2], tick, exact)
redis.call('ZADD', ARGV[3] .. redis.call('HGET', KEYS[3], exact):match(' (%S+)$'), tick, exact)
return result
