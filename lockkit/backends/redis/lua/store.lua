-- Prepended to every script that can grant. Times are µs.
--
-- KEYS, all in the slot of the name's bucket:
--   1 bucket  hash: v layout version, f fence counter, z when the last tombstone expires, and for
--             each name that is used a field '=name' that begins with its kind:
--             M  mutex: kind queued token until fence granted renewed extended (the number of the
--                last extension), of fixed widths (1 1 32 16 16 16 16 16), then 'ttl max_hold owner'
--             S  semaphore, R reader-writer lock, E reentrant lock: kind queued permits until (of
--                the last holder), of fixed widths (1 1 32 16); its holders are in a key of their own, see shared.lua
--   2 queue   zset: token -> ticket
--   3 waiters hash: token -> 'alive channel', then what its holder's entry will end with
--   4 tombs   zset: token (or b:token, if broken by an operator) -> until
-- A record outlives its lease by the grace period, so that abandoned leases can be listed.
local GRACE = 600000000

-- A key of another type is told before anything is written: scripts do not roll back.
redis.call('ZCARD', KEYS[2])
redis.call('HLEN', KEYS[3])
redis.call('ZCARD', KEYS[4])

-- The next fencing token or ticket: strictly growing, and by the clock it outlives data loss.
-- The caller stores it, together with what it is for.
local function number()
  local next = (moment(counter) or 0) + 1
  counter = us(next > now and next or now)
  return counter
end

-- Refuse a token from now on, for longer than a request can linger in a network.
local function bury(token)
  local until_ = us(now + GRACE)
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
  redis.call('ZADD', KEYS[4], until_, token)
  redis.call('PEXPIRE', KEYS[4], GRACE / 1000)
  redis.call('HSET', KEYS[1], 'z', until_)
end

-- Whether somebody alive is in the queue.
local function waits()
  for _, entry in ipairs(redis.call('HVALS', KEYS[3])) do
    if (waiter(entry) or damaged('its queue')) > now then return true end
  end
  return false
end

-- Delete a key, with a command that the others need anyway (an ACL names each).
local function forget(key) redis.call('PEXPIRE', key, 0) end

-- The record is of another kind: an error reply while the name is in use. Else it is forgotten.
local function in_use(record)
  if tonumber(string.sub(record, 35, 50)) > now or waits() then
    local permits = string.sub(record, 1, 1) == 'M' and '0' or string.match(record, '^..(%d+)')
    return redis.error_reply('KIND ' .. string.sub(record, 1, 1) .. ' ' .. permits)
  end
  forget(KEYS[2])
  forget(KEYS[3])
end

-- How many are in the queue. Once there are so many, the dead do not count: they are forgotten.
local function crowd(most)
  local size = redis.call('ZCARD', KEYS[2])
  if most == '-' or size < tonumber(most) then return size, false end
  local entries = redis.call('HGETALL', KEYS[3])
  for i = 1, #entries, 2 do
    if (waiter(entries[i + 1]) or damaged('its queue')) <= now then
      redis.call('ZREM', KEYS[2], entries[i])
      redis.call('HDEL', KEYS[3], entries[i])
      size = size - 1
    end
  end
  return size, size >= tonumber(most)
end

-- Join the queue with a new ticket, or give a sign of life: terms are 'alive max_queue channel'.
local function stay(token, ticket, terms, rest)
  local alive, channel = string.match(terms, '^(%d+) %S+ (%S+)$')
  if not ticket then
    ticket = number()
    redis.call('ZADD', KEYS[2], ticket, token)
    redis.call('HSET', KEYS[1], 'f', ticket)
  end
  redis.call('HSET', KEYS[3], token, us(now + alive) .. ' ' .. channel .. ' ' .. rest)
  redis.call('PEXPIRE', KEYS[2], GRACE / 1000)
  redis.call('PEXPIRE', KEYS[3], GRACE / 1000)
  return ticket
end
