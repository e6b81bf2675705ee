-- One attempt. ARGV: token mode(0 try, 1 enqueue, 2 poll) ttl 'ttl max_hold owner'
-- 'alive max_queue channel' repair(0, 1). Replies as in acquire_free, but an unknown time is '-'; and R,
-- like B: the key had no TTL, and has one now.
-- Other clients send no message when they release: the first waiter for one of them asks again after POLL.
local POLL = 50000
local token, mode, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
if redis.call('ZSCORE', KEYS[4], token) then return redis.status_reply('-') end
if record and holder == token then
  if not ours then return redis.status_reply('-') end
  local rest = left < 0 and ttl or left * 1000
  if is_handed_mutex(record) then -- it has heard of its grant
    rest = ttl
    expire_after(ttl)
    redis.call('HSET', KEYS[1], field, string.sub(record, 1, 34) .. us(now + ttl)
      .. string.sub(record, 51, 82) .. stamp .. string.sub(record, 99))
    remember(ttl)
  end
  return redis.status_reply(string.format('G %s %.0f', string.sub(record, 51, 66), rest))
end
local ticket = redis.call('ZSCORE', KEYS[2], token)
if not ticket and mode == '2' then return redis.status_reply('-') end
if not value then
  local fence
  if fair then fence = advance(field, token) end
  if not fence and not (fair and redis.call('HEXISTS', KEYS[1], field) == 1) then
    if ticket then leave(token) end
    fence = install(field, token, now + ttl, ARGV[4], 0)
  end
  if fence then return tonumber(fence) end
  look()
end
if value and not ours then -- the release of such a key runs no script that passes dead waiters
  for _, dead in ipairs(over(KEYS[5])) do
    if dead ~= token then leave(dead) end
  end
end
local ahead, full = redis.call('ZCARD', KEYS[2]), false
if not ticket and mode == '1' then
  ahead, full = crowd(string.match(ARGV[5], '^%d+ (%S+)'))
elseif ticket then
  ahead = redis.call('ZRANK', KEYS[2], token) or ahead -- advance may have left it out
end
local letter = 'B'
if value and left == -1 and not ours and ARGV[6] == '1' then
  redis.call('PEXPIRE', KEYS[6], milliseconds(ttl))
  letter, left = 'R', math.ceil(ttl / 1000)
end
local pause = left < 0 and '-' or string.format('%.0f', left * 1000)
if value and not ours and ahead == 0 and (left < 0 or left * 1000 > POLL) then pause = POLL end
if not value then pause = 0 end
local owner = ours and string.match(string.sub(record, 115), '^%S+ %S+ (.*)$') or ''
if full then return redis.status_reply(string.format('F %.0f %s %s', ahead, pause, owner)) end
if ticket or mode == '1' then
  ticket = stay(token, ticket, ARGV[5], ARGV[4])
  keep()
end
return redis.status_reply(string.format('%s %.0f %.0f %s %s', letter, ticket or 0, ahead, pause, owner))
