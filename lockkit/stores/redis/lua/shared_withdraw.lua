-- Leave the queue, or give back a grant that raced the decision. ARGV: =name used token unsure(0, 1)
-- Those behind it in the queue may have waited for it alone, and are then granted. Tombstones as in withdraw.
local token = ARGV[3]
if ours then first_waiting() end
local found = leave(token)
if holders[token] then
  found = 1
  drop(token)
end
if ours then advance(nil, true) end
if found == 0 or ARGV[4] == '1' then bury(token) end
return found
