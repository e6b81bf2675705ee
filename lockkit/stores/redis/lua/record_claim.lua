-- Write a record under the lease with this fence. ARGV: version =name fence state ttl(ms) replaces(0, 1)
-- what it says. Replies: 1 written, 0 there is another, -1 the lease is not held.
if holder ~= fence then return -1 end
-- A claim that was sent twice may arrive the second time after the end of its own try.
if is_mine and string.sub(head, 1, 1) == 'D' and ARGV[4] == 'R' then return 0 end
if head ~= '' and not is_mine then
  local before = moment(string.sub(head, 2))
  local is_orphan = string.sub(head, 1, 1) == 'R' and before and before < tonumber(fence)
  if ARGV[6] ~= '1' or not is_orphan then return 0 end
end
write(ARGV[4], ARGV[7], ARGV[5])
return 1
