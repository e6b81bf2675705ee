-- Some of a bucket's running records. KEYS: bucket, running, then the record of each name.
-- ARGV: the names. Writes nothing. Replies: for each name the record and the ms it has left, or ''
-- and 0 if it is no orphan: its lock is held, it has ended, or it is gone. Of one that cannot be
-- read, the record is -.
local reply = {}
for i = 1, #ARGV do
  local record = redis.pcall('GET', KEYS[2 + i])
  local lock = redis.call('HGET', KEYS[1], '=' .. ARGV[i])
  local is_held = lock and (not is_whole(lock) or tonumber(string.sub(lock, 35, 50)) > now)
  if type(record) == 'table' or record and not string.find(record, '^[RD]%d') then record = '-' end
  local is_orphan = record and (record == '-' or not is_held and string.sub(record, 1, 1) == 'R')
  reply[2 * i - 1] = is_orphan and record or ''
  reply[2 * i] = is_orphan and redis.call('PTTL', KEYS[2 + i]) or 0
end
return reply
