-- Give a shared claim back while others hold the name and nobody waits: it reads none of them.
-- ARGV and replies as in shared_release.
local entry = ARGV[4] == '0' and record and redis.call('HGET', KEYS[6], ARGV[3])
if entry and string.sub(record, 1, 1) == string.sub(ARGV[2], 1, 1) and is_whole(record) then
  local form, digits = is_holder(entry)
  if form == 'S' and tonumber(string.sub(digits, 1, 16)) > now and redis.call('ZCARD', KEYS[2]) == 0
    and redis.call('HLEN', KEYS[6]) > 1 then
    redis.call('HDEL', KEYS[6], ARGV[3])
    return 1
  end
end
