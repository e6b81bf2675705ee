-- Prepended to the scripts on one claim: what is known of the name, read at once. ARGV: =name …
local field = ARGV[1]
local known = redis.call('HMGET', KEYS[1], field, 'f')
local record, counter = known[1], known[2]
