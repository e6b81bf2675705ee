-- Prepended to every script on a plain key.
--
-- KEYS, all in the slot of the key:
--   1 state   hash: r record of the last grant, that of a mutex (see store.lua) with noughts for its
--             token; t its token; f fence counter; z when the last tombstone expires; w the last
--             lease that an operator broke: 'fence when who'; W an operator's last repair, of fence 0
--   2 queue, 3 waiters, 4 tombs, 5 alive as in store.lua
--   6 key     string: the value of the holder. Clients of all kinds write it.
-- What the key holds decides.
local FOREVER = 900000000000000 -- µs: a claim for longer gets a key without a TTL

-- The value of the key for a claim: its token; or what follows that, in hex.
local function value_of(token)
  local hex = string.match(token, '^%x+:(%x*)$')
  if not hex then return token end
  return (string.gsub(hex, '%x%x', function(byte) return string.char(tonumber(byte, 16)) end))
end

local function milliseconds(us) return string.format('%.0f', math.max(math.ceil(us / 1000), 1)) end

local KEPT = 600000 -- ms: the grace period

-- What lies beside the key outlives it by the grace period. If it were gone, a key that has no TTL on
-- purpose could be taken for one that was left behind.
local function remember(ttl)
  redis.call('PEXPIRE', KEYS[1], math.ceil(ttl / 1000) + KEPT)
end

local function write(token, until_, fence, rest, queued)
  local ttl = until_ - now
  if ttl < FOREVER then
    redis.call('SET', KEYS[6], value_of(token), 'PX', milliseconds(ttl))
  else
    redis.call('SET', KEYS[6], value_of(token))
  end
  redis.call('HSET', KEYS[1], 'f', fence, 't', token, 'r', 'M' .. queued .. string.rep('0', 32)
    .. us(until_) .. fence .. stamp .. stamp .. us(0) .. rest)
  remember(ttl)
end
