-- Prepended to every script that reads a record. Redis makes the functions of a script anew each time
-- it runs.

-- Of a mutex: the record that store.lua describes.
local function is_mutex(record)
  local digits = string.match(record, '^M[01]%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x'
    .. '%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x(%d+) [%d-]+ ')
  return digits and #digits > 80 and #digits < 96
end

-- A moment or a number of ours; nothing for anything else.
local function moment(text)
  return text and #text == 16 and string.find(text, '^[0-8]%d+$') and tonumber(text)
end
