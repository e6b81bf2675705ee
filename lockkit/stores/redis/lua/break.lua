-- An operator's release of exactly the grant that was displayed. ARGV: =name fence by
-- Replies: 1 released, 0 it is not there any more, -1 the name is shared: ask shared_break.
-- The tombstones tell the holder, when it releases, that it was broken, and refuse its token.
-- They are written after the release, which must work when memory is full.
if record and not is_whole(record) then damaged('its record') end
if record and string.sub(record, 1, 1) ~= 'M' then return -1 end
if not record or tonumber(string.sub(record, 51, 66)) ~= tonumber(ARGV[2]) then return 0 end
local token = string.sub(record, 3, 34)
advance(field)
bury('b:' .. token)
bury(token)
note_record(field, record, ARGV[3])
return 1
