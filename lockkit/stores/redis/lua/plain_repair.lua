-- Give the key a TTL if it has none, and delete what lies beside it if that cannot be read. ARGV: ttl by
-- what. 'all', 'damage', or the SHA-1 of the value that is to get a TTL, and then nothing else is done.
-- Replies: 1 done, 0 there was nothing to do. A key of another type is somebody else's: it stays.
local done, value, what = 0, redis.pcall('GET', KEYS[6]), ARGV[3]
local is_meant = type(value) == 'string' and (what == 'all' or what == redis.sha1hex(value))
if is_meant and redis.call('PTTL', KEYS[6]) == -1 then
  done = redis.call('PEXPIRE', KEYS[6], milliseconds(ARGV[1]))
end
local known = readable(redis.pcall('HMGET', KEYS[1], 'r'))
local is_damaged = not known or known[1] and not is_whole(known[1])
  or not waiting(KEYS[2], KEYS[3], KEYS[5], true) or not readable(redis.pcall('ZCARD', KEYS[4]))
if is_damaged and (what == 'all' or what == 'damage') then
  for i = 1, 5 do redis.call('PEXPIRE', KEYS[i], 0) end
  done = 1
end
if done == 1 then
  redis.call('HSET', KEYS[1], 'W', '0 ' .. stamp .. ' ' .. ARGV[2])
  remember(tonumber(ARGV[1]))
end
return done
