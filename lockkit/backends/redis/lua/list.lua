-- Some records of one bucket. KEYS: bucket, then queue, waiters and holders of each name. ARGV: the
-- names. Forgets what was abandoned longer ago than the grace period. Replies: now, then for each
-- name the record without its token ('' if there is none), how many wait, how many of them are
-- alive, and the entries of those who share it.
local reply = { us(now) }
for i = 1, #ARGV do
  local field, queue = '=' .. ARGV[i], 3 * i - 1
  local record = redis.call('HGET', KEYS[1], field)
  if record and tonumber(string.sub(record, 35, 50)) + 600000000 < now then
    redis.call('HDEL', KEYS[1], field)
    record = nil
  end
  local alive, entries = 0, {}
  if record and string.sub(record, 2, 2) == '1' then
    for _, entry in ipairs(redis.call('HVALS', KEYS[queue + 1])) do
      if tonumber(string.sub(entry, 1, 16)) > now then alive = alive + 1 end
    end
  end
  if record and string.sub(record, 1, 1) ~= 'M' then
    entries = redis.call('HVALS', KEYS[queue + 2])
    record = string.sub(record, 1, 34)
  elseif record then
    record = string.sub(record, 1, 2) .. string.sub(record, 35)
  end
  reply[#reply + 1] = record or ''
  reply[#reply + 1] = redis.call('ZCARD', KEYS[queue])
  reply[#reply + 1] = alive
  reply[#reply + 1] = entries
end
return reply
