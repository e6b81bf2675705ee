-- One attempt, while somebody holds the name or waits for it. Goes on where acquire_free ends.
-- The same token gets the same grant, with what is left of it; or with all of it, if it was handed
-- over. The latter begins with a write that is allowed when memory is full.
if record and not is_whole(record) then damaged('its record') end
if record and string.sub(record, 1, 1) ~= 'M' then
  if mode == '2' then return redis.status_reply('-') end
  local used = in_use(record)
  if used then return used end
  forget_holders(field, record)
  record = nil
end
local left = record and tonumber(string.sub(record, 35, 50)) - now or 0
if record and string.sub(record, 3, 34) == token then
  if is_handed_mutex(record) then
    left = tonumber(ttl)
    redis.call('HDEL', KEYS[1], '')
    redis.call('HSET', KEYS[1], field, string.sub(record, 1, 34) .. us(now + left)
      .. string.sub(record, 51, 82) .. stamp .. string.sub(record, 99))
  elseif left <= 0 then
    return redis.status_reply('-')
  end
  return redis.status_reply(string.format('G %s %.0f', string.sub(record, 51, 66), left))
end
local ticket = redis.call('ZSCORE', KEYS[2], token)
if not ticket and mode == '2' then return redis.status_reply('-') end
if left <= 0 and not fair then
  if ticket then leave(token) end
  local fence = install(field, token, now + ttl, ARGV[5], 1)
  if record then note_record(field, record, '') end
  return tonumber(fence)
elseif left <= 0 then
  local fence = advance(field, token)
  if record then note_record(field, record, '') end
  record = not fence and redis.call('HGET', KEYS[1], field)
  if not record then
    fence = fence or install(field, token, now + ttl, ARGV[5], 0)
    return tonumber(fence)
  end
  left = tonumber(string.sub(record, 35, 50)) - now
end
local holder = string.match(string.sub(record, 115), '^%S+ %S+ (.*)$')
local ahead, full = redis.call('ZCARD', KEYS[2]), false
if not ticket and mode == '1' then
  ahead, full = crowd(string.match(ARGV[6], '^%d+ (%S+)'))
  if full then return redis.status_reply(string.format('F %.0f %.0f %s', ahead, left, holder)) end
  redis.call('HSET', KEYS[1], field, 'M1' .. string.sub(record, 3))
elseif ticket then
  ahead = redis.call('ZRANK', KEYS[2], token) or ahead -- advance may have left it out
end
if ticket or mode == '1' then ticket = stay(token, ticket, ARGV[6], ARGV[5]) end
return redis.status_reply(string.format('B %.0f %.0f %.0f %s', ticket or 0, ahead, left, holder))
