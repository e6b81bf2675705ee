-- Give a claim back while nobody waits and nothing is unsure: most often all there is to do.
-- ARGV: =name token unsure(0, 1). Replies: 1 released, 0 absent or expired, 2 broken by an operator.
local mine = record and string.sub(record, 3, 34) == ARGV[2] and is_mutex(record)
if mine and string.sub(record, 2, 2) == '0' and ARGV[3] == '0' then
  redis.call('HDEL', KEYS[1], field)
  local time = redis.call('TIME')
  return tonumber(string.sub(record, 35, 50)) > time[1] * 1000000 + time[2] and 1 or 0
end
