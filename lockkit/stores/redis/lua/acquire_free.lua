-- One attempt, while nobody holds the name: most often all there is to do, so it comes first.
-- ARGV: =name token mode(0 try, 1 enqueue, 2 poll) ttl 'ttl max_hold owner'
-- 'alive max_queue channel'. Replies: G fence [left] | B ticket ahead left owner | F ahead left
-- owner (the queue is full) | - (the token is gone)
local field, token, mode, ttl = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local bucket = redis.call('HMGET', KEYS[1], 'v', 'f', 'z', field)
local record, counter = bucket[4], bucket[2]
local is_free = not record and mode ~= '2'

local function take()
  local stamp, last = us(now), moment(counter) or 0
  local fence = last < now and stamp or us(last + 1)
  redis.call('HSET', KEYS[1], 'f', fence, field,
    'M0' .. token .. us(now + ttl) .. fence .. stamp .. stamp .. us(0) .. ARGV[5])
  return { ok = 'G ' .. fence }
end

local is_known = bucket[1] == VERSION
  and not (bucket[3] and (moment(bucket[3]) or now + 1) > now) -- and so are no tombstones
if is_free and is_known and now % 64 ~= 0 then return take() end
