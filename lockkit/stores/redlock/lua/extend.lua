-- KEYS: names. ARGV, for each: token ttl(ms) number. Replies, for each: the ms that are left; 0:
-- it is not ours.
local replies = {}
for index, key in ipairs(KEYS) do
  local token, ttl, number = ARGV[3 * index - 2], ARGV[3 * index - 1], tonumber(ARGV[3 * index])
  local stamp, last = vote(key, token)
  if not stamp then
    replies[index] = 0
  elseif number < last then
    replies[index] = math.max(redis.call('PTTL', key), 1)
  else
    write(key, token, stamp, number, ttl)
    replies[index] = tonumber(ttl)
  end
end
return replies
