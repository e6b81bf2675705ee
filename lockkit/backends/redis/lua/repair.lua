-- Delete what is kept of a name if some of it cannot be read, in a step with that proof. KEYS as in
-- shared.lua. ARGV: =name. Replies: 1 deleted, 0 all of it can be read.
local record = redis.call('HGET', KEYS[1], ARGV[1])
local is_damaged, alone = record and not is_whole(record), nil
if record then alone = string.sub(record, 1, 1) == 'M' end
for i, read in pairs({ [2] = 'ZCARD', [3] = 'HVALS', [4] = 'ZCARD', [5] = 'HVALS' }) do
  local found = redis.pcall(read, KEYS[i])
  if type(found) == 'table' and found.err then
    is_damaged = true
    redis.call('PEXPIRE', KEYS[i], 0)
    found = {}
  end
  for _, entry in ipairs(i % 2 == 1 and found or {}) do
    local is_known = i == 3 and waiter(entry, alone) or i == 5 and is_holder(entry)
    is_damaged = is_damaged or not is_known
  end
end
if not is_damaged then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
for _, i in ipairs({ 2, 3, 5 }) do redis.call('PEXPIRE', KEYS[i], 0) end
return 1
