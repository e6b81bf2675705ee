-- Write the end over the record with this fence, even if the lease is gone: nobody has taken the
-- order over. If that record has expired, only under the lease. ARGV: version =name fence ttl(ms)
-- what it says. Replies: 1 written, 0 it is not there.
if not is_mine and not (head == '' and holder == fence) then return 0 end
write('D', ARGV[5], ARGV[4])
return 1
