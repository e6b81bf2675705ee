-- Delete what is kept of a name if some of it cannot be read, in the step that finds so. KEYS as in
-- shared.lua. ARGV: =name by
-- Replies: 1 deleted, 0 all of it can be read.
local record = redis.call('HGET', KEYS[1], ARGV[1])
local holders, alone = readable(redis.pcall('HVALS', KEYS[6])), nil
if record then alone = string.sub(record, 1, 1) == 'M' end
local is_damaged = (record and not is_whole(record)) or not holders
  or not waiting(KEYS[2], KEYS[3], KEYS[5], alone)
for _, entry in ipairs(holders or {}) do
  is_damaged = is_damaged or not is_holder(entry)
end
if not readable(redis.pcall('ZCARD', KEYS[4])) then
  is_damaged = true
  redis.call('PEXPIRE', KEYS[4], 0)
end
if not is_damaged then return 0 end
local version = redis.call('HGET', KEYS[1], 'v')
if version and version ~= VERSION and string.find(version, '^%d+$') then return other_layout(version) end
redis.call('HDEL', KEYS[1], ARGV[1])
for _, i in ipairs({ 2, 3, 5, 6 }) do redis.call('PEXPIRE', KEYS[i], 0) end
note_repair(string.sub(ARGV[1], 2), ARGV[2])
return 1
