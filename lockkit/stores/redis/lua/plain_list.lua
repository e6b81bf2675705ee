-- Tells what is known about one name. Writes nothing. Replies: now, milliseconds left (-1 no TTL, -2 nobody
-- has it), whether it is the claim of the record(0, 1), the record, how many wait, how many of them
-- are alive, the first waiters, what cannot be read ('' if nothing), and the SHA-1 of the value of a key
-- without a TTL.
local damage = ''
local value = redis.pcall('GET', KEYS[6])
if type(value) == 'table' then damage = 'its key' end
local known = readable(redis.pcall('HMGET', KEYS[1], 'r', 't')) or { '?' }
local record = known[1] or ''
if known[1] and not is_whole(record) then record, damage = '', 'its record' end
local size, alive = waiting(KEYS[2], KEYS[3], KEYS[5], true)
if not (size and readable(redis.pcall('ZCARD', KEYS[4]))) then damage = 'its queue' end
local ours = known[2] and value == value_of(known[2]) and 1 or 0
local left, mark = redis.call('PTTL', KEYS[6]), ''
if left == -1 and type(value) == 'string' then mark = redis.sha1hex(value) end
return { stamp, left, ours, record, size or 0, alive or 0,
  size and first_of(KEYS[2], KEYS[3], KEYS[5]) or {}, damage, mark }
