-- Give a claim back and grant from the head of the queue. ARGV: =name used token unsure(0, 1).
-- Replies: 1 released, 0 absent or expired, 2 broken by an operator.
local token, reply = ARGV[3], 0
local mine = holders[token]
if mine then
  first_waiting()
  if mine.till > now or is_handed_holder(mine.till, mine.tail) then reply = 1 end
  drop(token)
  advance(nil, true)
elseif redis.call('ZSCORE', KEYS[4], 'b:' .. token) then
  reply = 2
end
if ARGV[4] == '1' then bury(token) end
return reply
