-- Some records of one bucket. KEYS: bucket, tombs, then queue, waiters and holders of each name.
-- ARGV: the names. Writes nothing. Replies: now, then for each name the record without its token ('' if there
-- is none, or it was abandoned longer ago than the grace period), how many wait, how many of them
-- are alive, the entries of those who share it, and what of it is damaged ('' if nothing is).
local reply = { us(now) }

-- The reply, if it is one: a key may be of another type.
local function readable(value) return (type(value) ~= 'table' or not value.err) and value end

local tombs = readable(redis.pcall('ZCARD', KEYS[2]))
for i = 1, #ARGV do
  local queue, record = 3 * i, redis.call('HGET', KEYS[1], '=' .. ARGV[i])
  local damage = tombs and '' or 'its tombstones'
  local size, alive, entries = 0, 0, {}
  if record and not is_whole(record) then
    record, damage = nil, 'its record'
  elseif record and tonumber(string.sub(record, 35, 50)) + 600000000 < now then
    record = nil
  end
  if record then
    size = readable(redis.pcall('ZCARD', KEYS[queue]))
    local waiters = size and readable(redis.pcall('HVALS', KEYS[queue + 1]))
    if not waiters then size, damage = 0, 'its queue' end
    for _, entry in ipairs(waiters or {}) do
      local until_ = waiter(entry, string.sub(record, 1, 1) == 'M')
      if not until_ then damage = 'its queue' end
      if until_ and until_ > now then alive = alive + 1 end
    end
  end
  if record and string.sub(record, 1, 1) ~= 'M' then
    local found = readable(redis.pcall('HVALS', KEYS[queue + 2]))
    if not found then damage = 'its holders' end
    for _, entry in ipairs(found or {}) do
      if is_holder(entry) then entries[#entries + 1] = entry else damage = 'one of its holders' end
    end
    record = string.sub(record, 1, 34)
  elseif record then
    record = string.sub(record, 1, 2) .. string.sub(record, 35)
  end
  reply[#reply + 1] = record or ''
  reply[#reply + 1] = size
  reply[#reply + 1] = alive
  reply[#reply + 1] = entries
  reply[#reply + 1] = damage
end
return reply
