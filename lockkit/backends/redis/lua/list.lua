-- Some records of one bucket. KEYS: bucket, then queue and waiters of each name. ARGV: the names.
-- Forgets what was abandoned longer ago than the grace period. Replies: now, then for each name the
-- record without its token ('' if there is none), how many wait, and how many of them are alive.
local reply = { us(now) }
for i = 1, #ARGV do
  local field = '=' .. ARGV[i]
  local record = redis.call('HGET', KEYS[1], field)
  if record and tonumber(string.sub(record, 35, 50)) + 600000000 < now then
    redis.call('HDEL', KEYS[1], field)
    record = nil
  end
  local alive = 0
  if record and string.sub(record, 2, 2) == '1' then
    for _, entry in ipairs(redis.call('HVALS', KEYS[2 * i + 1])) do
      if tonumber(string.sub(entry, 1, 16)) > now then alive = alive + 1 end
    end
  end
  reply[#reply + 1] = record and string.sub(record, 1, 2) .. string.sub(record, 35) or ''
  reply[#reply + 1] = redis.call('ZCARD', KEYS[2 * i])
  reply[#reply + 1] = alive
end
return reply
