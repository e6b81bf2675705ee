-- Give a claim back while nothing is unsure, and nobody waits or the first waiter is alive: most often
-- all there is to do, so it comes first, and makes no function. What it does not do is left to release.
-- ARGV: =name token unsure(0, 1). Replies: 1 released, 0 absent or expired, 2 broken by an operator.
local held = redis.call('HGET', KEYS[1], ARGV[1])
local is_mine = held and string.sub(held, 3, 34) == ARGV[2] and string.find(held, '^M[01]')
local ended = is_mine and ARGV[3] == '0' and string.match(held, '^%d+() [%d-]+ ', 35) -- its digits
if ended and ended > 115 and ended < 131 then
  local left = string.sub(held, 35, 50) - now
  if string.sub(held, 2, 2) == '0' then
    redis.call('HDEL', KEYS[1], ARGV[1])
    return left > 0 and 1 or 0
  end
  local head, fence = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES'), redis.call('HGET', KEYS[1], 'f')
  local token, stamp = head[1], time[1] .. string.sub('00000' .. time[2], -6)
  local entry = token and redis.call('HGET', KEYS[3], token)
  local alive = entry and tonumber(redis.call('ZSCORE', KEYS[5], token) or 0)
  local channel, rest, ttl = string.match(entry or '', '^(%S+) ((%d+) [%d-]+ .*)$')
  if left > 0 and channel and #ttl < 16 and alive > now and (not fence or fence < stamp) then
    redis.call('ZREM', KEYS[2], token)
    redis.call('HDEL', KEYS[3], token)
    redis.call('ZREM', KEYS[5], token)
    redis.call('HSET', KEYS[1], 'f', stamp, ARGV[1], 'M1' .. token
      .. string.format('%016.0f', math.min(now + ttl, alive)) .. stamp .. stamp .. stamp .. '0000000000000000' .. rest)
    -- Last: the server may refuse to write, and a message is a grant.
    if channel == '-' or is_heard(channel, token .. ' ' .. string.format('%.0f', head[2]) .. ' ' .. stamp) then
      return 1
    end
    ARGV[2] = token -- nobody listens: it is dead, and what it was given is released below
  end
end
