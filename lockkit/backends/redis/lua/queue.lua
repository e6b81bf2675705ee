-- Prepended to every script that can grant. Mirrors lockkit/grant.py for a mutex; times are µs.
--
-- KEYS, all in the slot of the name's bucket:
--   1 bucket  hash: v layout version, f fence counter, z when the last tombstone expires, and for
--             each name held a field '=name': kind queued token until fence granted renewed
--             extended (the number of the last extension), of fixed widths (1 1 32 16 16 16 16 16),
--             then 'ttl max_hold owner'
--   2 queue   zset: token -> ticket
--   3 waiters hash: token -> 'alive channel ttl max_hold owner'
--   4 tombs   zset: token (or b:token, if broken by an operator) -> until
-- A record outlives its lease by the grace period, so that abandoned leases can be listed.
local GRACE = 600000000

-- The next fencing token or ticket: strictly growing, and by the clock it outlives data loss.
-- The caller stores it, together with what it is for.
local function number()
  local next = (tonumber(counter) or 0) + 1
  counter = us(next > now and next or now)
  return counter
end

local function install(field, token, until_, rest, queued)
  local fence, stamp = number(), us(now)
  redis.call('HSET', KEYS[1], 'f', fence, field,
    'M' .. queued .. token .. us(until_) .. fence .. stamp .. stamp .. us(0) .. rest)
  return fence
end

-- A record made here says that somebody waits, without looking: the next release looks.
-- The name is free: grant the first waiter that is alive, forget the dead ones before it.
-- Returns the fence if that is the asker. State first, message last and by pcall: scripts do not
-- roll back. Nobody listening means dead; an error (no permission to publish) means that the
-- waiter learns of its grant when it asks next. The first write is one allowed at full memory.
local function advance(field, asker)
  while true do
    local head = redis.call('ZPOPMIN', KEYS[2])
    local token, ticket = head[1], head[2]
    if not token then
      redis.call('HDEL', KEYS[1], field)
      return nil
    end
    local entry = redis.call('HGET', KEYS[3], token) or ''
    redis.call('HDEL', KEYS[3], token)
    local alive, channel, rest = string.match(entry, '^(%d+) (%S+) (.*)$')
    alive = tonumber(alive)
    if alive and (token == asker or alive > now) then
      local until_ = now + string.match(rest, '^%d+')
      if token ~= asker and alive < until_ then until_ = alive end
      local fence = install(field, token, until_, rest, 1)
      if token == asker then return fence end
      if channel == '-' then return nil end
      local heard = redis.pcall('PUBLISH', channel,
        token .. ' ' .. string.format('%.0f', ticket) .. ' ' .. fence)
      if heard ~= 0 then return nil end
    end
  end
end

-- Refuse a token from now on, for longer than a request can linger in a network.
local function bury(token)
  local until_ = us(now + GRACE)
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
  redis.call('ZADD', KEYS[4], until_, token)
  redis.call('PEXPIRE', KEYS[4], GRACE / 1000)
  redis.call('HSET', KEYS[1], 'z', until_)
end
