-- Leave the queue, or give back a grant that raced the decision. ARGV: =name token unsure(0, 1)
-- Finding nothing, or being unsure, leaves a tombstone: a request of this token that is still
-- under way must not succeed when it arrives.
if record and not is_whole(record) then damaged('its record') end
local found = leave(ARGV[2])
if record and string.sub(record, 3, 34) == ARGV[2] then
  found = 1
  advance(field)
end
if found == 0 or ARGV[3] == '1' then bury(ARGV[2]) end
return found
