-- Prepended to the scripts that read records, below layout. What no script of ours has written may
-- be anybody's: it is never granted over, changed or deleted; the script ends with the error DAMAGED.

-- Whether it is the record of a mutex, or of a name that several may hold.
local function is_whole(record)
  return is_mutex(record) or #record == 50
    and string.find(record, '^[SRE][01]%d+ *%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d$')
end

-- The form, the digits and the entrant of a holder's entry, which shared.lua describes; nothing if it
-- cannot be read.
local function is_holder(entry)
  local form, digits, entrant, ttl = string.match(entry, '^([XS])(%d+) (%S+) (%d+) [%d-]+ ')
  if ttl and #digits > 80 and #digits < 96 and #ttl < 16 then return form, digits, entrant end
end

-- Whether a holder was granted by a message, for less than its ttl, and has not been heard of since.
-- As long as its entry is there, nobody has had the name in between.
local function is_handed(till, granted, extended, ttl)
  return tonumber(extended) == 0 and till - granted < tonumber(ttl)
end

local function is_handed_mutex(record)
  return is_handed(string.sub(record, 35, 50), string.sub(record, 67, 82), string.sub(record, 99, 114),
    string.match(record, '^%d+', 115))
end

-- tail: what follows its fence
local function is_handed_holder(till, tail)
  return is_handed(till, string.sub(tail, 1, 16), string.sub(tail, 33, 48),
    string.match(tail, '^%d+ %S+ (%d+)', 49))
end

-- A waiter's channel and what follows; nothing if its entry cannot be read or is not of the kind wanted:
-- a mutex (alone is true), another kind (false) or any (nil).
local function waiter(entry, alone)
  local channel, form, rest = string.match(entry, '^(%S+) ([XS]? ?)(.*)$')
  if not channel or alone ~= nil and alone ~= (form == '') then return nil end
  local permits, ttl = '', nil
  if form == '' then
    ttl = string.match(rest, '^(%d+) [%d-]+ ')
  else
    permits, ttl = string.match(rest, '^(%d+) %S+ (%d+) [%d-]+ ')
  end
  if ttl and #ttl < 16 and #permits < 16 then return channel, string.sub(form, 1, 1), rest, ttl end
end

-- What another version of lockkit has written may only look damaged.
local function damaged(what)
  local version = redis.call('HGET', KEYS[1], 'v')
  if version and version ~= VERSION and string.find(version, '^%d+$') then
    error('LAYOUT ' .. version, 0)
  end
  error('DAMAGED ' .. what, 0)
end

local function other_layout(version)
  if not string.find(version, '^%d+$') or #version > 9 then damaged('its bucket') end
  return redis.error_reply('LAYOUT ' .. version)
end
