-- An operator's decision about exactly the orphan that was displayed. ARGV: version =name fence ttl(ms)
-- what it says from now on ('': nothing, it may be tried anew). Replies: 1 done, 0 it has changed.
if holder or head ~= 'R' .. fence then return 0 end
if ARGV[5] == '' then forget() else write('D', ARGV[5], ARGV[4]) end
return 1
