-- An operator's release of exactly the grant that was displayed. ARGV: =name used fence by
local broken, last = {}, nil
for token, holder in pairs(holders) do
  if tonumber(holder.fence) == tonumber(ARGV[3]) then broken[#broken + 1], last = token, holder end
end
if #broken > 0 then first_waiting() end
for _, token in ipairs(broken) do drop(token) end
if #broken > 0 then advance(nil, true) end
for _, token in ipairs(broken) do
  bury('b:' .. token)
  bury(token)
end
if last then note_entry(field, kind, as_entry(last), ARGV[4]) end
return #broken > 0 and 1 or 0
