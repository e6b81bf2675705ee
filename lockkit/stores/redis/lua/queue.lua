-- Prepended to every script that can grant a mutex. Mirrors lockkit/engine/grant.py. Needs install,
-- leave_unclaimed and leave_free, which write down who has it.

-- The name is free: grant the first waiter that is alive, forget the dead ones before it.
-- Returns the fence if that is the asker. State first, message last and by pcall: scripts do not
-- roll back. A waiter that does not listen is dead; after an error (no permission to publish), it
-- learns of its grant when it asks next. The first write is one that is allowed when memory is full.
-- A record made here says that somebody waits, whether or not it is so: the next release looks.
local function advance(field, asker)
  for _ = 1, PASS_MOST do
    local head = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
    local token, ticket = head[1], head[2]
    if not token then
      leave_unclaimed(field)
      return nil
    end
    local entry, alive = redis.call('HGET', KEYS[3], token), alive_until(token)
    local channel, _, rest, ttl = waiter(entry or '', true)
    if entry and not channel then damaged('its queue') end
    leave(token)
    if channel and (token == asker or alive > now) then
      local until_ = now + ttl
      if token ~= asker and alive < until_ then until_ = alive end
      local fence = install(field, token, until_, rest, 1)
      if token == asker then return fence end
      if channel == '-' then return nil end
      if is_heard(channel, token .. ' ' .. string.format('%.0f', ticket) .. ' ' .. fence) then
        return nil
      end
    end
  end
  if waits() then
    leave_free(field)
  else
    leave_unclaimed(field)
    empty_queue()
  end
end
