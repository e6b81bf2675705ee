-- An operator's decision about exactly the orphan that was displayed. ARGV: version =name fence ttl(ms)
-- what it says from now on ('': nothing, it may be tried anew), who decided it and why, and the owner
-- of the try, for the last words of the name. Replies: 1 done, 0 it has changed.
if holder or head ~= 'R' .. fence then return 0 end
if ARGV[5] == '' then forget() else write('D', ARGV[5], ARGV[4]) end
if ARGV[6] ~= '' then
  note(name, 'M', 'X', 0, stamp .. fence .. stamp .. stamp .. us(0) .. '1 - ' .. ARGV[7], ARGV[6])
end
return 1
