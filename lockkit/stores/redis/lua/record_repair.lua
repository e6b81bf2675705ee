-- Delete exactly the record that could not be read, while nobody holds its lock. KEYS as in record.lua.
-- ARGV: =name, SHA-1 of the record ('' of a key of another type), who deletes it and why, for the last
-- words of the name. Replies: 1 deleted, 0 it is another.
local lock = redis.call('HGET', KEYS[1], ARGV[1])
if lock and (not is_whole(lock) or tonumber(string.sub(lock, 35, 50)) > now) then return 0 end
local record = redis.pcall('GET', KEYS[2])
local seen = type(record) == 'table' and '' or record and redis.sha1hex(record)
if seen ~= ARGV[2] then return 0 end
redis.call('ZREM', KEYS[3], string.sub(ARGV[1], 2))
redis.call('DEL', KEYS[2])
note_repair(string.sub(ARGV[1], 2), ARGV[3])
return 1
