-- Take a vote back. KEYS: the name, the tombstone of the token. ARGV: token stamp unsure(0, 1)
-- ms: how long it stays buried. Replies: 1 released, 0 absent.
-- An acquire whose vote is not found may still be on its way here, so each acquire with this stamp
-- or an earlier one is buried.
local token, stamp = ARGV[1], tonumber(ARGV[2])
local voted = vote(KEYS[1], token)
local is_ours = voted and voted <= stamp
if is_ours then redis.call('DEL', KEYS[1]) end
local is_buried = tonumber(redis.call('GET', KEYS[2]) or -1) >= stamp
if (ARGV[3] == '1' or not is_ours) and not is_buried then
  redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[4])
end
return is_ours and 1 or 0
