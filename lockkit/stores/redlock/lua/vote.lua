-- Returns the stamp of this token's vote and the number of its last extension, or nil and nil; and
-- whether the key is taken. A value is 'token stamp number'; one that another client of the plain
-- protocol wrote is never ours.
local function vote(key, token)
  local value = redis.call('GET', key)
  if not value then return nil, nil, false end
  local stamp, number = string.match(string.sub(value, #token + 1), '^ (%d+) (%d+)$')
  if stamp and string.sub(value, 1, #token) == token then
    return tonumber(stamp), tonumber(number), true
  end
  return nil, nil, true
end

local function write(key, token, stamp, number, ttl)
  local value = string.format('%s %.0f %.0f', token, stamp, number)
  if ttl then return redis.call('SET', key, value, 'PX', ttl) end
  redis.call('SET', key, value, 'KEEPTTL')
end
