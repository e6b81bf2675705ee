-- Set what is left of many leases of one bucket. KEYS: bucket. ARGV: name, token, ttl of each.
-- Replies for each: 1 extended, 0 not ours any more (expired means lost, also when still free).
-- Begins with a write that is allowed when memory is full; the others may then follow.
redis.call('HDEL', KEYS[1], '')
local replies, stamp = {}, us(now)
for i = 1, #ARGV, 3 do
  local field = '=' .. ARGV[i]
  local record = redis.call('HGET', KEYS[1], field)
  local extended = record and string.sub(record, 3, 34) == ARGV[i + 1]
    and tonumber(string.sub(record, 35, 50)) > now
  if extended then
    redis.call('HSET', KEYS[1], field, string.sub(record, 1, 34) .. us(now + ARGV[i + 2])
      .. string.sub(record, 51, 82) .. stamp .. string.sub(record, 99))
  end
  replies[#replies + 1] = extended and 1 or 0
end
return replies
