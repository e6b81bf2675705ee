-- One attempt for a claim that may be shared. ARGV: =name used token mode(0 try, 1 enqueue, 2 poll)
-- ttl 'ttl max_hold owner' 'alive max_queue channel' form entrant. Replies as in acquire_free.
local token, mode, ttl, form, entrant = ARGV[3], ARGV[4], ARGV[5], ARGV[8], ARGV[9]
local rest = permits .. ' ' .. entrant .. ' ' .. ARGV[6]
local bucket = redis.call('HMGET', KEYS[1], 'v', 'z')
if bucket[1] ~= VERSION then
  if bucket[1] then return other_layout(bucket[1]) end
  redis.call('HSET', KEYS[1], 'v', VERSION)
end
if bucket[2] and (moment(bucket[2]) or now + 1) > now and redis.call('ZSCORE', KEYS[4], token) then
  return redis.status_reply('-')
end
local mine = holders[token]
if mine and is_handed_holder(mine.till, mine.tail) then -- it has heard of its grant
  redis.call('HDEL', KEYS[1], '')
  touched, together, mine.till = true, nil, now + ttl
  mine.tail = string.sub(mine.tail, 1, 16) .. stamp .. string.sub(mine.tail, 33)
  redis.call('HSET', KEYS[6], token, as_entry(mine))
  save()
elseif mine and mine.till <= now then
  return redis.status_reply('-')
end
if mine then
  if mine.form == 'X' and form == 'S' then -- waiters may share it from now on
    redis.call('HDEL', KEYS[1], '') -- full memory allows this write, and then the others
    first_waiting()
    touched, together, mine.form = true, nil, 'S'
    redis.call('HSET', KEYS[6], token, 'S' .. us(mine.till) .. mine.fence .. mine.tail)
    advance(nil)
  end
  return redis.status_reply(string.format('G %s %.0f', mine.fence, mine.till - now))
end
local ticket = ours and redis.call('ZSCORE', KEYS[2], token)
if not ticket and mode == '2' then return redis.status_reply('-') end
if not ours then
  local used = record and in_use(record)
  if used then return used end
  if record then forget_holders(field, record) end
  forget(KEYS[6]) -- left by another kind
end
local _, reads = own(form, entrant)
if reads then return redis.error_reply('UPGRADE') end
local barges = not fair and has_room(form, entrant, permits)
if not barges then advance(token) end
mine = holders[token]
if mine then return tonumber(mine.fence) end
ticket = ticket and redis.call('ZSCORE', KEYS[2], token)
if barges or own(form, entrant) or (not ticket and has_room(form, entrant, permits) and not waits()) then
  if ticket then leave(token) end
  local fence = install(token, form, now + ttl, rest)
  save()
  if now % 64 == 0 then forget_some() end
  if barges then advance(nil) end
  return tonumber(fence)
end
local first, soonest = living()
local holder = first and string.match(first.tail, '^%S+ %S+ %S+ %S+ (.*)$') or ''
local left, full = soonest and soonest - now or 0, false
local ahead = redis.call('ZCARD', KEYS[2])
if not ticket and mode == '1' then
  ahead, full = crowd(string.match(ARGV[7], '^%d+ (%S+)'))
  if full then return redis.status_reply(string.format('F %.0f %.0f %s', ahead, left, holder)) end
elseif ticket then
  ahead = redis.call('ZRANK', KEYS[2], token) or ahead
end
if ticket or mode == '1' then ticket = stay(token, ticket, ARGV[7], form .. ' ' .. rest) end
return redis.status_reply(string.format('B %.0f %.0f %.0f %s', ticket or 0, ahead, left, holder))
