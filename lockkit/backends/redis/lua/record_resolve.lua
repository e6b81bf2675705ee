-- An operator's decision about exactly the orphan that was displayed. ARGV: =name fence ttl(ms)
-- what it says from now on ('': nothing, it may be tried anew). Replies: 1 done, 0 it has changed.
if holder or head ~= 'R' .. fence then return 0 end
if ARGV[4] == '' then forget() else write('D', ARGV[4], ARGV[3]) end
return 1
