-- Keep a recorded result and evict the least recently used ones beyond the limits.
-- KEYS  1 entries  hash  exact -> result          2 used    zset  exact by tick of its last use
--       3 places   hash  exact -> "normalised bucket"
--       4 normal   hash  normalised -> exact      5 counts  hash  'tick', 'bytes'
-- ARGV  exact, result, normalised, bucket, most entries, most bytes, prefix of the bucket keys (zset: exact by tick of its last use)
local exact, result, normalised, bucket = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local call = redis.call

local function drop(name)
  local kept = call('HGET', KEYS[1], name)
  if not kept then return end
  local place = call('HGET', KEYS[3], name)
  local norm, buck = place:match('^(%S+) (%S+)$')
  call('HDEL', KEYS[1], name)
  call('HDEL', KEYS[3], name)
  call('ZREM', KEYS[2], name)
  call('ZREM', ARGV[7] .. buck, name)
  if call('HGET', KEYS[4], norm) == name then call('HDEL', KEYS[4], norm) end
  call('HINCRBY', KEYS[5], 'bytes', -#kept)
end

if #result > tonumber(ARGV[6]) then return 0 end
drop(exact)
local tick = call('HINCRBY', KEYS[5], 'tick', 1)
call('HSET', KEYS[1], exact, result)
call('HSET', KEYS[3], exact, normalised .. ' ' .. bucket)
call('ZADD', KEYS[2], tick, exact)
call('ZADD', ARGV[7] .. bucket, tick, exact)
call('HSETNX', KEYS[4], normalised, exact)
local bytes = call('HINCRBY', KEYS[5], 'bytes', #result)
while call('HLEN', KEYS[1]) > tonumber(ARGV[5]) or bytes > tonumber(ARGV[6]) do
  drop(call('ZRANGE', KEYS[2], 0, 0)[1])
  bytes = tonumber(call('HGET', KEYS[5], 'bytes'))
end
return 1
