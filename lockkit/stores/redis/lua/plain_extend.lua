-- Set what is left of one lease. ARGV: token ttl number. Replies as in extend, in a list of one.
-- The key's value decides; what is remembered beside the key may be gone.
local token, ttl, number = ARGV[1], tonumber(ARGV[2]), us(ARGV[3])
if not is_mine(token) then return { 0 } end
local known = record and holder == token
if known and number < string.sub(record, 99, 114) then return { left < 0 and -ttl or -left * 1000 } end
expire_after(ttl)
if known then
  redis.call('HSET', KEYS[1], field, string.sub(record, 1, 34) .. us(now + ttl)
    .. string.sub(record, 51, 82) .. stamp .. number .. string.sub(record, 115))
  remember(ttl)
end
return { 1 }
