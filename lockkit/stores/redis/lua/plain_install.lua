-- Prepended to every script that can grant a plain key: how a grant is written down.

local function install(_, token, until_, rest, queued)
  local fence, stamp, ttl = number(), us(now), until_ - now
  if ttl < FOREVER then
    redis.call('SET', KEYS[6], value_of(token), 'PX', milliseconds(ttl))
  else
    redis.call('SET', KEYS[6], value_of(token))
  end
  redis.call('HSET', KEYS[1], 'f', fence, 't', token, field, 'M' .. queued .. string.rep('0', 32)
    .. us(until_) .. fence .. stamp .. stamp .. us(0) .. rest)
  redis.call('PEXPIRE', KEYS[1], milliseconds(ttl + GRACE))
  return fence
end

-- Nobody holds it, and whoever asks next goes on with the queue.
local function leave_free(_)
  redis.call('HSET', KEYS[1], 't', '', field,
    'M1' .. string.rep('0', 32) .. us(now) .. string.rep('0', 64) .. '0 - ')
end

-- What was written beside a key that is not ours is forgotten, too.
local function keep()
  if redis.call('PTTL', KEYS[1]) == -1 then redis.call('PEXPIRE', KEYS[1], GRACE / 1000) end
end
