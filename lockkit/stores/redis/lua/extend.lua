-- Set what is left of many leases of one bucket. KEYS: bucket. ARGV: name, token, ttl, number of each.
-- Replies for each: 1 extended, 0 not ours any more (expired means lost, also when still free),
-- minus what is left, if one with a greater number was done before, or nil if it is damaged.
-- Begins with a write that is allowed when memory is full; the others may then follow.
redis.call('HDEL', KEYS[1], '')
local replies, stamp = {}, us(now)
for i = 1, #ARGV, 4 do
  local field, number = '=' .. ARGV[i], us(ARGV[i + 3])
  local record = redis.call('HGET', KEYS[1], field)
  local ours = record and string.sub(record, 3, 34) == ARGV[i + 1]
  local reply, left = 0, 0
  if record and not is_whole(record) then
    reply = false
  elseif ours then
    left = tonumber(string.sub(record, 35, 50)) - now
  end
  if left > 0 and number < string.sub(record, 99, 114) then
    reply = -left
  elseif left > 0 then
    redis.call('HSET', KEYS[1], field, string.sub(record, 1, 34) .. us(now + ARGV[i + 2])
      .. string.sub(record, 51, 82) .. stamp .. number .. string.sub(record, 115))
    reply = 1
  end
  replies[#replies + 1] = reply
end
return replies
