-- Take an unused bucket for this layout, or be told that another release has it. KEYS: bucket.
local version = redis.call('HGET', KEYS[1], 'v')
if version and version ~= VERSION then return other_layout(version) end
redis.call('HSET', KEYS[1], 'v', VERSION)
return 1
