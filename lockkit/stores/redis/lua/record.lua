-- Prepended to the scripts on the record of an order, which is kept beside the order's lock.
-- KEYS, all in the slot of the name's bucket: 1 bucket (see store.lua), 2 record, 3 running.
-- record   string: state (R running, D done) and fence, of fixed widths (1 16), then what it says
-- running  zset: name -> when its record expires, of the records that are running
-- ARGV: layout version, =name, fence …
local bucket = redis.call('HMGET', KEYS[1], 'v', ARGV[2])
if bucket[1] and bucket[1] ~= ARGV[1] then return other_layout(bucket[1]) end
local lock, name, fence = bucket[2], string.sub(ARGV[2], 2), ARGV[3]
local head = redis.call('GETRANGE', KEYS[2], 0, 16)
local is_mine = string.sub(head, 2) == fence
if lock and not is_whole(lock) then damaged('its lock') end
redis.call('ZCARD', KEYS[3]) -- fails for a key of another type, before anything is written

-- The fence of the lease that now holds the order's lock.
local holder = lock and tonumber(string.sub(lock, 35, 50)) > now and string.sub(lock, 51, 66)

local function write(state, says, ttl)
  -- First, because full memory refuses SET, but not in a script that has written.
  if state == 'D' then redis.call('ZREM', KEYS[3], name) end
  redis.call('SET', KEYS[2], state .. fence .. says, 'PX', ttl)
  for _, old in ipairs(redis.call('ZRANGE', KEYS[3], '-inf', stamp, 'BYSCORE', 'LIMIT', 0, 16)) do
    redis.call('ZREM', KEYS[3], old)
  end
  if state == 'D' then return end
  redis.call('ZADD', KEYS[3], us(now + ttl * 1000), name)
  if redis.call('PTTL', KEYS[3]) < tonumber(ttl) then redis.call('PEXPIRE', KEYS[3], ttl) end
end

local function forget()
  redis.call('DEL', KEYS[2])
  redis.call('ZREM', KEYS[3], name)
end
