-- One attempt, while somebody holds the name or waits for it. Goes on where acquire_free ends.
-- Asked again with the same token, the same grant is the answer, with what is left of it.
if record and string.sub(record, 1, 1) ~= 'M' then
  return redis.error_reply('KIND ' .. string.sub(record, 1, 1))
end
local left = record and tonumber(string.sub(record, 35, 50)) - now or 0
if record and string.sub(record, 3, 34) == token then
  if left <= 0 then return redis.status_reply('-') end
  return redis.status_reply(string.format('G %s %.0f', string.sub(record, 51, 66), left))
end
local ticket = redis.call('ZSCORE', KEYS[2], token)
if not ticket and mode == '2' then return redis.status_reply('-') end
if left <= 0 then
  local fence = advance(field, token)
  record = not fence and redis.call('HGET', KEYS[1], field)
  if not record then
    fence = fence or install(field, token, now + ttl, ARGV[5], 0)
    return redis.status_reply('G ' .. fence)
  end
  left = tonumber(string.sub(record, 35, 50)) - now
end
local holder = string.match(string.sub(record, 115), '^%S+ %S+ (.*)$')
local ahead = redis.call('ZCARD', KEYS[2])
local alive, max_queue, channel = string.match(ARGV[6], '^(%d+) (%S+) (%S+)$')
if not ticket and mode == '1' then
  if max_queue ~= '-' and ahead >= tonumber(max_queue) then
    local entries = redis.call('HGETALL', KEYS[3]) -- the dead do not count: forget them
    for i = 1, #entries, 2 do
      if tonumber(string.sub(entries[i + 1], 1, 16)) <= now then
        redis.call('ZREM', KEYS[2], entries[i])
        redis.call('HDEL', KEYS[3], entries[i])
        ahead = ahead - 1
      end
    end
    if ahead >= tonumber(max_queue) then
      return redis.status_reply(string.format('F %.0f %.0f %s', ahead, left, holder))
    end
  end
  ticket = number()
  redis.call('ZADD', KEYS[2], ticket, token)
  redis.call('HSET', KEYS[1], 'f', ticket, field, 'M1' .. string.sub(record, 3))
elseif ticket then
  ahead = redis.call('ZRANK', KEYS[2], token) or ahead -- advance may have left it out
end
if ticket then
  redis.call('HSET', KEYS[3], token, us(now + alive) .. ' ' .. channel .. ' ' .. ARGV[5])
  redis.call('PEXPIRE', KEYS[2], GRACE / 1000)
  redis.call('PEXPIRE', KEYS[3], GRACE / 1000)
end
return redis.status_reply(string.format('B %.0f %.0f %.0f %s', ticket or 0, ahead, left, holder))
