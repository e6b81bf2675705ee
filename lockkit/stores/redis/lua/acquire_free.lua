-- One attempt, while nobody holds the name. That is the usual case, so it comes first, compares
-- numbers as strings, and makes no function.
-- ARGV: =name token mode(0 try, 1 enqueue, 2 poll) ttl 'ttl max_hold owner'
-- 'alive max_queue channel'. Replies: the fence of a whole grant | G fence left | B ticket ahead left
-- owner | F ahead left owner (the queue is full) | - (the token is gone)
local stamp = time[1] .. string.sub('00000' .. time[2], -6)
local field, token, mode, ttl = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local bucket = redis.call('HMGET', KEYS[1], 'v', 'f', 'z', field)
local record, counter = bucket[4], bucket[2]
local is_free = not record and mode ~= '2'
local is_known = bucket[1] == VERSION -- and there are certainly no tombstones
  and (not bucket[3] or string.find(bucket[3], '^[0-8]%d+$') and #bucket[3] == 16 and bucket[3] < stamp)
if is_free and is_known and (not counter or counter < stamp) and time[2] % 64 ~= 0 then
  redis.call('HSET', KEYS[1], 'f', stamp, field, 'M0' .. token .. string.format('%016.0f', now + ttl)
    .. stamp .. stamp .. stamp .. '0000000000000000' .. ARGV[5])
  return now
end
