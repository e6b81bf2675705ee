-- Prepended to every script that can grant. Times are µs.
--
-- KEYS, all in the slot of the name's bucket:
--   1 bucket  hash: v layout version, f fence counter, z when the last tombstone expires, w0 to
--             w14 last words (see words.lua), and for
--             each name that is used a field '=name' that begins with its kind:
--             M  mutex: kind queued token until fence granted renewed extended (the number of the
--                last extension), of fixed widths (1 1 32 16 16 16 16 16), then 'ttl max_hold owner'
--             S  semaphore, R reader-writer lock, E reentrant lock: kind queued permits until (not
--                before the last holder's), of fixed widths (1 1 32 16); permits: how many may hold
--                a semaphore; for the others, 1 if a holder may exclude all, else 0; the holders are
--                in a key of their own, see shared.lua
--   2 queue   zset: token -> ticket
--   3 waiters hash: token -> 'channel', then what its holder's entry will end with
--   4 tombs   zset: token (or b:token, if broken by an operator) -> until
--   5 alive   zset: token -> until when its waiter counts as alive
-- A record outlives its lease by the grace period, so that abandoned leases can be listed.
-- Each step does a bounded number of commands, however many wait or are dead. The next step goes on.
local GRACE = 600000000
local PASS_MOST = 256 -- waiters that one step grants or finds dead
local SWEEP_MOST = 16 -- expired entries that one step forgets

-- These fail for a key of another type before anything is written: scripts do not roll back.
redis.call('ZCARD', KEYS[2])
redis.call('HLEN', KEYS[3])
redis.call('ZCARD', KEYS[4])
redis.call('ZCARD', KEYS[5])

-- The next fencing token or ticket: strictly growing, and by the clock it outlives data loss.
-- The caller stores it, together with what it is for.
local function number()
  local next = (moment(counter) or 0) + 1
  counter = us(next > now and next or now)
  return counter
end

-- Some members of a sorted set whose time is over.
local function over(key)
  return redis.call('ZRANGE', key, '-inf', stamp, 'BYSCORE', 'LIMIT', 0, SWEEP_MOST)
end

-- Refuse a token from now on, for longer than a request can linger in a network.
local function bury(token)
  local until_ = us(now + GRACE)
  redis.call('HDEL', KEYS[1], '') -- full memory allows this write, and then the others
  for _, old in ipairs(over(KEYS[4])) do redis.call('ZREM', KEYS[4], old) end
  redis.call('ZADD', KEYS[4], until_, token)
  redis.call('PEXPIRE', KEYS[4], GRACE / 1000)
  redis.call('HSET', KEYS[1], 'z', until_)
end

-- Whether somebody alive is in the queue.
local function living_waiters() return redis.call('ZCOUNT', KEYS[5], '(' .. stamp, '+inf') end
local function waits() return living_waiters() > 0 end

-- Take one out of the queue; whether it was there.
local function leave(token)
  local found = redis.call('ZREM', KEYS[2], token)
  redis.call('HDEL', KEYS[3], token)
  redis.call('ZREM', KEYS[5], token)
  return found
end

-- Until when it counts as alive; 0 if it is not there.
local function alive_until(token) return tonumber(redis.call('ZSCORE', KEYS[5], token) or 0) end

-- Delete a key, with a command that the others need anyway (an ACL names each).
local function forget(key) redis.call('PEXPIRE', key, 0) end

local function empty_queue()
  for _, key in ipairs({ 2, 3, 5 }) do forget(KEYS[key]) end
end

-- Whether one that shares the name is live: the record may say so for longer, see shared_release_free.
local function shares_live()
  local key = string.sub(KEYS[1], 1, -2) .. 'h:' .. string.sub(ARGV[1], 2)
  local entries = redis.pcall('HGETALL', key)
  for i = 2, #entries, 2 do
    local form, digits = is_holder(entries[i])
    if not form or tonumber(string.sub(digits, 1, 16)) > now then return true end
  end
  return entries.err ~= nil
end

-- For a record of another kind: returns an error reply while the name is in use, else empties its queue.
local function in_use(record)
  local held = tonumber(string.sub(record, 35, 50)) > now
  if held and (string.sub(record, 1, 1) == 'M' or shares_live()) or waits() then
    local permits = string.sub(record, 1, 1) == 'M' and '0' or string.match(record, '^..(%d+)')
    return redis.error_reply('KIND ' .. string.sub(record, 1, 1) .. ' ' .. permits)
  end
  empty_queue()
end

-- How many are in the queue, and whether at least ``most`` of them are alive.
local function crowd(most)
  local size = redis.call('ZCARD', KEYS[2])
  return size, most ~= '-' and size >= tonumber(most) and living_waiters() >= tonumber(most)
end

-- Join the queue with a new ticket, or give a sign of life: terms are 'alive max_queue channel'.
local function stay(token, ticket, terms, rest)
  local alive, channel = string.match(terms, '^(%d+) %S+ (%S+)$')
  if not ticket then
    for _, dead in ipairs(over(KEYS[5])) do leave(dead) end
    ticket = number()
    redis.call('ZADD', KEYS[2], ticket, token)
    redis.call('HSET', KEYS[1], 'f', ticket)
  else
    redis.call('HDEL', KEYS[1], '') -- full memory allows this write, and then the others
  end
  redis.call('HSET', KEYS[3], token, channel .. ' ' .. rest)
  redis.call('ZADD', KEYS[5], us(now + alive), token)
  for _, key in ipairs({ 2, 3, 5 }) do redis.call('PEXPIRE', KEYS[key], GRACE / 1000) end
  return ticket
end
