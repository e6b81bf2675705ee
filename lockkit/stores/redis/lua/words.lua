-- Prepended to the scripts that find a lease which was not released, or repair a record: they keep the
-- last words of the name.
--
-- They are fields of the bucket, w0 to w14, one for each slot of names: 'at kind form' of fixed
-- widths (16 1 1), then ' permits length-of-name length-of-by ', name, by (the operator who broke it;
-- empty: it expired) and the record or entry from its 'until' on, without permits and entrant.
-- A repair of the name's record has the next slot, and a fence of 0.
local WORDS, DAY = 15, 86400000000

local function slots()
  local fields = {}
  for slot = 1, WORDS do fields[slot] = 'w' .. slot - 1 end
  return fields
end

local function note(name, kind, form, permits, tail, by, further)
  local at = by == '' and string.sub(tail, 1, 16) or stamp
  local slot = (tonumber(string.sub(redis.sha1hex(name), 1, 4), 16) + (further or 0)) % WORDS
  redis.call('HSET', KEYS[1], 'w' .. slot,
    at .. kind .. form .. ' ' .. permits .. ' ' .. #name .. ' ' .. #by .. ' ' .. name .. by .. tail)
  for i, words in ipairs(redis.call('HMGET', KEYS[1], unpack(slots()))) do
    if words and (tonumber(string.sub(words, 1, 16)) or 0) + DAY < now then
      redis.call('HDEL', KEYS[1], 'w' .. i - 1) -- older than a day
    end
  end
end

-- Keep the last words of a mutex. A record that only marks a queue had no holder, so it has none.
local function note_record(field, record, by)
  if string.sub(record, 115, 118) ~= '0 - ' then
    note(string.sub(field, 2), 'M', 'X', 0, string.sub(record, 35), by)
  end
end

-- Keep the last words of one holder of a name that several may hold.
local function note_entry(field, kind, entry, by)
  local permits, rest = string.match(string.sub(entry, 82), '^(%d+) %S+ (.*)$')
  note(string.sub(field, 2), kind, string.sub(entry, 1, 1), permits, string.sub(entry, 2, 81) .. rest, by)
end

-- Keep who repaired what could not be read, unless the bucket is of another layout.
local function note_repair(name, by)
  if (redis.call('HGET', KEYS[1], 'v') or VERSION) == VERSION then
    note(name, 'M', 'X', 0, stamp .. us(0) .. stamp .. stamp .. us(0) .. '1 - ', by, 1)
  end
end
