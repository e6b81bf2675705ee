-- Some of a bucket's records. KEYS: bucket, running, then the record of each name. ARGV: the names.
-- Writes nothing. Replies: for each name the record and the ms it has left, or '' and 0 if it is gone,
-- or running while its lock is held. A record that cannot be read is '-'.
local reply = {}
for i = 1, #ARGV do
  local record = redis.pcall('GET', KEYS[2 + i])
  local lock = redis.call('HGET', KEYS[1], '=' .. ARGV[i])
  local is_held = lock and (not is_whole(lock) or tonumber(string.sub(lock, 35, 50)) > now)
  if type(record) == 'table' then
    if not string.find(record.err, 'WRONGTYPE', 1, true) then return record end
    record = '-'
  end
  if record and not string.find(record, '^[RD]%d') then record = '-' end
  if not record or is_held and string.sub(record, 1, 1) == 'R' then record = '' end
  reply[2 * i - 1] = record
  reply[2 * i] = record == '' and 0 or redis.call('PTTL', KEYS[2 + i])
end
return reply
