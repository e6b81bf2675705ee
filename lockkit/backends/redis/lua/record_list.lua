-- Some of a bucket's running records. KEYS: bucket, running, then the record of each name.
-- ARGV: the names. Replies: for each name the record and the ms it has left, or '' and 0 if it is
-- no orphan: its lock is held, it has ended, or it is gone (then it is not listed again).
local reply = {}
for i = 1, #ARGV do
  local record = redis.call('GET', KEYS[2 + i])
  local lock = redis.call('HGET', KEYS[1], '=' .. ARGV[i])
  local is_held = lock and tonumber(string.sub(lock, 35, 50)) > now
  if not record then redis.call('ZREM', KEYS[2], ARGV[i]) end
  local is_orphan = record and not is_held and string.sub(record, 1, 1) == 'R'
  reply[2 * i - 1] = is_orphan and record or ''
  reply[2 * i] = is_orphan and redis.call('PTTL', KEYS[2 + i]) or 0
end
return reply
