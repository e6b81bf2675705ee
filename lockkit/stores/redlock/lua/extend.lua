-- Extend leases. KEYS: names. ARGV, for each name: token ttl(ms) number. Replies, for each name:
-- the ms that are left; 0: this node does not have the lease.
local replies = {}
for index, key in ipairs(KEYS) do
  local token, ttl, number = ARGV[3 * index - 2], ARGV[3 * index - 1], tonumber(ARGV[3 * index])
  local stamp, last = vote(key, token)
  if not stamp then
    replies[index] = 0
  elseif number < last then
    replies[index] = math.max(redis.call('PTTL', key), 1)
  else
    redis.call('DEL', key) -- full memory refuses SET, but not in a script that has written
    write(key, token, stamp, number, ttl)
    replies[index] = tonumber(ttl)
  end
end
return replies
