-- Prepended to the scripts that look whether all that is kept of a name can be read.
local LOOK_MOST = 255 -- as many waiters as one step may pass

-- The reply; nothing if the key is of another type. Other errors end the script: they are not damage, but
-- a permission that the user lacks, for example.
local function readable(value)
  if type(value) ~= 'table' or not value.err then return value end
  if not string.find(value.err, 'WRONGTYPE', 1, true) then error(value.err, 0) end
end

-- How many wait, and how many of them are alive; nothing if the queue cannot be read.
local function waiting(queue, waiters, alive, alone)
  local size, living = readable(redis.pcall('ZCARD', queue)),
    readable(redis.pcall('ZCOUNT', alive, '(' .. stamp, '+inf'))
  if not (size and living and readable(redis.pcall('HLEN', waiters))) then return nil end
  local first = redis.call('ZRANGE', queue, 0, LOOK_MOST)
  for _, entry in ipairs(#first > 0 and redis.call('HMGET', waiters, unpack(first)) or {}) do
    if entry and not waiter(entry, alone) then return nil end
  end
  return size, living
end

-- The first waiters: the ticket of each, until when it is alive, and its entry.
local function first_of(queue, waiters, alive)
  local found, line = redis.call('ZRANGE', queue, 0, 15, 'WITHSCORES'), {}
  for i = 1, #found, 2 do
    line[#line + 1] = found[i + 1]
    line[#line + 1] = redis.call('ZSCORE', alive, found[i]) or '0'
    line[#line + 1] = redis.call('HGET', waiters, found[i]) or ''
  end
  return line
end
