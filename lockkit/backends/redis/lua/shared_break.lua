-- An operator's release of exactly the grant that was displayed. ARGV: =name used fence
local broken = {}
for token, holder in pairs(holders) do
  if tonumber(holder.fence) == tonumber(ARGV[3]) then broken[#broken + 1] = token end
end
if #broken > 0 then first_waiting() end
for _, token in ipairs(broken) do drop(token) end
if #broken > 0 then advance(nil, true) end
for _, token in ipairs(broken) do
  bury('b:' .. token)
  bury(token)
end
return #broken > 0 and 1 or 0
