-- Prepended to the scripts that grant: tell a waiter; whether anybody may have heard it. An error (no
-- permission to publish) says nothing of that.
local function is_heard(channel, message)
  -- Who listens at a replica is not counted, and is to hear nothing. Some hosted servers forbid this.
  pcall(redis.set_repl, redis.REPL_NONE)
  local count = redis.pcall('PUBLISH', channel, message)
  pcall(redis.set_repl, redis.REPL_ALL)
  return count ~= 0
end
