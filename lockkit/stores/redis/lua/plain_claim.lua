-- Prepended to the scripts on one claim: what is known of the key, read at once.
local field, record, counter, holder, value, left, ours = 'r', nil, nil, nil, nil, nil, nil

local function look()
  local known = redis.call('HMGET', KEYS[1], field, 'f', 't')
  record, counter, holder = known[1], known[2], known[3]
  value, left = redis.call('GET', KEYS[6]), redis.call('PTTL', KEYS[6])
  ours = value and record and holder and value == value_of(holder)
end

-- Whether the key belongs to this very claim: users may give several claims the same value. If a
-- claim's token is noughts, only its value is known. If what lies beside the key is lost, the value decides,
-- except for a claim with a user's value that may only be in the queue (waits).
local function is_mine(token, waits)
  if not value or value ~= value_of(token) then return false end
  if ours then return holder == token or string.find(token, '^0+:') ~= nil end
  return not (waits and string.find(token, ':', 1, true))
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
