-- An operator's release of exactly the grant that was displayed. ARGV: =name fence
-- The tombstones tell the holder, when it releases, that it was broken, and refuse its token.
-- They are written after the release, which must work when memory is full.
if not record or tonumber(string.sub(record, 51, 66)) ~= tonumber(ARGV[2]) then return 0 end
local token = string.sub(record, 3, 34)
advance(field)
bury('b:' .. token)
bury(token)
return 1
