-- Forget the running record with this fence. ARGV: version =name fence. Replies: 1 forgotten, 0 not there.
if head ~= 'R' .. fence then return 0 end
forget()
return 1
