-- Give a claim back while nobody waits and nothing is unsure: most often all there is to do.
-- ARGV: =name token unsure(0, 1). Replies: 1 released, 0 absent or expired, 2 broken by an operator.
local mine = record and string.sub(record, 3, 34) == ARGV[2]
if mine and ARGV[3] == '0' and string.sub(record, 1, 2) == 'M0' then
  local digits = string.match(record, '^(%d+) [%d-]+ ', 35)
  if digits and #digits > 80 and #digits < 96 then
    redis.call('HDEL', KEYS[1], field)
    return string.sub(record, 35, 50) - now > 0 and 1 or 0
  end
end
