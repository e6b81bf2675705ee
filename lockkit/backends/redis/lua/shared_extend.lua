-- Set what is left of many leases of one bucket, as extend does. KEYS: bucket, then the holders of
-- each name. ARGV: name, token, ttl, number of each. Replies as of extend.

-- When the last of those who hold it expires, for the record of the name.
local function last_of(key, till)
  for _, entry in ipairs(redis.call('HVALS', key)) do
    local other = string.sub(entry, 2, 17)
    if other > till then till = other end
  end
  return till
end

redis.call('HDEL', KEYS[1], '')
local replies, stamp = {}, us(now)
for i = 1, #ARGV, 4 do
  local key, token, number = KEYS[(i + 7) / 4], ARGV[i + 1], us(ARGV[i + 3])
  local entry = redis.call('HGET', key, token)
  local left = entry and tonumber(string.sub(entry, 2, 17)) - now or 0
  local reply = 0
  if left > 0 and number < string.sub(entry, 66, 81) then
    reply = -left
  elseif left > 0 then
    local field, till = '=' .. ARGV[i], us(now + ARGV[i + 2])
    redis.call('HSET', key, token, string.sub(entry, 1, 1) .. till
      .. string.sub(entry, 18, 49) .. stamp .. number .. string.sub(entry, 82))
    local record = redis.call('HGET', KEYS[1], field)
    local last = string.sub(record, 35, 50)
    if till < last then till = last_of(key, till) end
    if till ~= last then
      redis.call('HSET', KEYS[1], field, string.sub(record, 1, 34) .. till)
      redis.call('PEXPIRE', key, math.ceil((till - now + 600000000) / 1000))
    end
    reply = 1
  end
  replies[#replies + 1] = reply
end
return replies
