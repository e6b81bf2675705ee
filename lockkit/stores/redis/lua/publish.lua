-- Prepended to the scripts that grant: tell a waiter; whether anybody may have heard it. An error (no
-- permission to publish) says nothing of that.
local function is_heard(channel, message) return redis.pcall('PUBLISH', channel, message) ~= 0 end
