-- Ask for a vote. KEYS: the name, the tombstone of the token. ARGV: token ttl(ms) stamp delay(s).
-- Replies: the ms that are left | 0: this acquire is buried | -1: somebody else has the name |
-- less, -1 - n: it votes in n seconds, as it was restarted and may have forgotten its votes
local token, ttl, stamp, delay = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if delay > 0 then
  local uptime = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(-?%d+)'))
  if uptime < delay then return uptime - delay - 1 end
end
if tonumber(redis.call('GET', KEYS[2]) or -1) >= stamp then return 0 end
local earlier, number, is_taken = vote(KEYS[1], token)
if not is_taken then
  write(KEYS[1], token, stamp, 0, ttl)
  return tonumber(ttl)
end
if not earlier then return -1 end
write(KEYS[1], token, math.max(earlier, stamp), number) -- a release of the earlier one is late
return math.max(redis.call('PTTL', KEYS[1]), 1)
