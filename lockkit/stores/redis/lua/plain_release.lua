-- Give a claim back, or leave the queue, and grant the head of the queue. ARGV: token unsure(0, 1)
-- queued(0, 1): it may be no more than a place in the queue. Replies: 1 released, 0 absent or expired,
-- 2 broken by an operator.
local token, reply, found = ARGV[1], 0, 0
if ARGV[3] == '1' then found = leave(token) end
if is_mine(token, ARGV[3] == '1') then
  reply, found = 1, 1
  advance(field)
elseif record and holder == token then -- it expired, or somebody else has released it
  found = 1
  if value then redis.call('HDEL', KEYS[1], field) else advance(field) end
elseif redis.call('ZSCORE', KEYS[4], 'b:' .. token) then
  reply = 2
end
if ARGV[2] == '1' or (ARGV[3] == '1' and found == 0) then
  bury(token)
  keep()
end
return reply
