-- Note that clients lock with this prefix, so that those who look with another one can be told.
-- KEYS: prefixes, a zset: prefix -> when a client with it began. ARGV: prefix.
local MOST, KEPT = 256, 365 * 86400000000
redis.call('ZADD', KEYS[1], stamp, ARGV[1])
local oldest = redis.call('ZRANGE', KEYS[1], 0, 15, 'WITHSCORES')
for i = 1, #oldest, 2 do
  if oldest[i + 1] + KEPT < now or redis.call('ZCARD', KEYS[1]) > MOST then
    redis.call('ZREM', KEYS[1], oldest[i])
  end
end
redis.call('PEXPIRE', KEYS[1], KEPT / 1000)
return 1
