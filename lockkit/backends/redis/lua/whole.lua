-- Prepended to every script that reads a record. What no script of ours has written may be anybody's:
-- it is never granted over, changed or deleted; the script ends with the error DAMAGED instead.

-- Of a mutex: the record that store.lua describes.
local function is_mutex(record)
  local digits = string.match(record, '^M[01]%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x'
    .. '%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x(%d+) [%d-]+ ')
  return digits and #digits > 80 and #digits < 96
end

-- Of a name: that, or the record of one that several may hold.
local function is_whole(record)
  return is_mutex(record) or #record == 50
    and string.find(record, '^[SRE][01]%d+ *%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d$')
end

-- Of one who shares a name: what shared.lua describes.
local function is_holder(entry)
  local ttl = string.match(entry, '^%S+ (%d+) [%d-]+ ', 82)
  return ttl and #ttl < 16 and string.find(entry, '^[XS]%d')
    and not string.find(string.sub(entry, 2, 81), '%D')
end

-- Of one who waits: until when it is alive and what follows; nothing if it cannot be read, or if it
-- does not wait for a mutex (alone) or for another kind (not alone).
local function waiter(entry, alone)
  local alive, channel, form, rest = string.match(entry, '^(%d+) (%S+) ([XS]? ?)(.*)$')
  local ttl = alive and #alive == 16
    and string.match(rest, form == '' and '^(%d+) [%d-]+ ' or '^%S+ (%d+) [%d-]+ ')
  if ttl and #ttl < 16 and (alone == nil or alone == (form == '')) then return tonumber(alive), channel, string.sub(form, 1, 1), rest, ttl end
end

local function damaged(what) error('DAMAGED ' .. what, 0) end

-- A moment or a number of ours; nothing for anything else.
local function moment(text)
  return text and #text == 16 and string.find(text, '^[0-8]%d+$') and tonumber(text)
end

local function other_layout(version)
  if not string.find(version, '^%d+$') or #version > 9 then damaged('its bucket') end
  return redis.error_reply('LAYOUT ' .. version)
end
