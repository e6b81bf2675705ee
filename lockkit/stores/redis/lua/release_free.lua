-- Goes on where release_now ends: the first waiter is alive, or there is none. The rest is left to release.
if left and left > 0 then
  local head, fence = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES'), redis.call('HGET', KEYS[1], 'f')
  local token, stamp = head[1], time[1] .. string.sub('00000' .. time[2], -6)
  if not token then
    redis.call('HDEL', KEYS[1], ARGV[1])
    return 1
  end
  local entry = redis.call('HGET', KEYS[3], token)
  local alive = entry and tonumber(redis.call('ZSCORE', KEYS[5], token) or 0)
  local channel, rest, ttl = string.match(entry or '', '^(%S+) ((%d+) [%d-]+ .*)$')
  if channel and #ttl < 16 and alive > now and (not fence or fence < stamp) then
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
