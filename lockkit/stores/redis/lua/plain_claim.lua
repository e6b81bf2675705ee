-- Prepended to the scripts on one claim: what is known of the key, read at once.
local field, record, counter, holder, value, left, ours = 'r', nil, nil, nil, nil, nil, nil

local function look()
  local known = redis.call('HMGET', KEYS[1], field, 'f', 't')
  record, counter, holder = known[1], known[2], known[3]
  value, left = redis.call('GET', KEYS[6]), redis.call('PTTL', KEYS[6])
  ours = value and record and holder and value == value_of(holder)
end

local function expire_after(ttl)
  if ttl < FOREVER then
    redis.call('PEXPIRE', KEYS[6], milliseconds(ttl))
  else
    redis.call('PERSIST', KEYS[6])
  end
end

look()
if record and not is_whole(record) then damaged('its record') end
