-- Prepended to the scripts on names that several may hold. Mirrors lockkit/grant.py.
--
-- KEYS: 1 to 4 as in store.lua, and
--   5 holders hash: token -> form (X exclusive, S shared) until fence granted renewed extended, of
--             fixed widths (1 16 16 16 16 16), then 'entrant ttl max_hold owner' (entrant: who may enter
--             again what it holds; - nobody)
-- Who waits has its form and then the same after its channel.
-- ARGV: =name used, then what each script says. used: kind and permits (0: no limit).
local ADVANCE_MOST = 256
if record and not is_whole(record) then damaged('its record') end
redis.call('HLEN', KEYS[5])
local kind, permits = string.match(ARGV[2], '^(.)(%d*)$')
local known_kind, known_permits = string.match(record or '', '^([^M]).(%d+)')
if kind == '*' then kind, permits = known_kind, known_permits end -- whatever it is
permits = tonumber(permits)
local ours = known_kind and known_kind == kind and tonumber(known_permits) == permits
local holders = {}
if ours then
  local entries = redis.call('HGETALL', KEYS[5])
  for i = 1, #entries, 2 do
    local entry = entries[i + 1]
    if not is_holder(entry) then damaged('one of its holders') end
    holders[entries[i]] = { form = string.sub(entry, 1, 1), till = tonumber(string.sub(entry, 2, 17)),
      fence = string.sub(entry, 18, 33), tail = string.sub(entry, 34),
      entrant = string.match(entry, '^(%S+)', 82) }
  end
end

-- Of those who hold it: the first, and when the next of them expires.
local function living()
  local first, soonest
  for _, holder in pairs(holders) do
    if holder.till > now then
      local born = holder.fence .. holder.tail -- which begins with the moment of the grant
      if not first or born < first.fence .. first.tail then first = holder end
      if not soonest or holder.till < soonest then soonest = holder.till end
    end
  end
  return first, soonest
end

-- The live claim of this owner that is equal or stronger; else whether it holds a weaker one.
local function own(form, entrant)
  local equal, weaker
  if entrant == '-' then return equal, weaker end
  for _, holder in pairs(holders) do
    if holder.till > now and holder.entrant == entrant then
      if form == 'S' or holder.form == 'X' then equal = holder else weaker = true end
    end
  end
  return equal, weaker and not equal
end

-- Whether no live holder is in its way.
local function has_room(form, entrant)
  if own(form, entrant) then return true end
  local count = 0
  for _, holder in pairs(holders) do
    if holder.till > now then
      if form == 'X' or holder.form == 'X' then return false end
      count = count + 1
    end
  end
  return permits == 0 or count < permits
end

local touched = false -- whether this script has changed what is held

local function drop(token)
  touched = true
  holders[token] = nil
  redis.call('HDEL', KEYS[5], token)
end

-- All exclusive claims of one owner have one fence: each may go on writing.
local function install(token, form, till, rest)
  for other, holder in pairs(holders) do
    if holder.till <= now then drop(other) end
  end
  touched = true
  local entrant = string.match(rest, '^%S+')
  local held = form == 'X' and own(form, entrant)
  local fence, stamp = held and held.fence or number(), us(now)
  local tail = stamp .. stamp .. us(0) .. rest
  holders[token] = { form = form, till = till, fence = fence, tail = tail, entrant = entrant }
  redis.call('HSET', KEYS[5], token, form .. us(till) .. fence .. tail)
  return fence
end

-- The record of the name, by which it is listed and known to be in use.
local function save()
  if not next(holders) and redis.call('ZCARD', KEYS[2]) == 0 then
    redis.call('HDEL', KEYS[1], field)
    return
  end
  local last = 0
  for _, holder in pairs(holders) do
    if holder.till > last then last = holder.till end
  end
  redis.call('HSET', KEYS[1], 'f', counter, field,
    kind .. '1' .. string.format('%-32.0f', permits) .. us(last))
  redis.call('PEXPIRE', KEYS[5], math.max(math.ceil((last - now + GRACE) / 1000), 1))
end

-- The first who waits. One that cannot be read ends the script, unless it has changed something
-- already; then nobody is granted past it, and the next script ends.
local function first_waiting()
  local head = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  local entry = head[1] and redis.call('HGET', KEYS[3], head[1])
  local alive, channel, form, rest, ttl = waiter(entry or '', false)
  if not entry or alive then
    return head[1], head[2], alive, channel, form, rest, ttl
  elseif not touched then
    damaged('its queue')
  end
end

-- While there is room, grant the first waiter that is alive, and forget the dead ones before it.
-- Returns whom to tell, and whether anything has changed.
local function pass(asker)
  local told, granted, changed = {}, 0, false
  while granted < ADVANCE_MOST do
    local token, ticket, alive, channel, form, rest, ttl = first_waiting()
    if not token then break end
    local lives = alive and (token == asker or alive > now)
    if lives and not has_room(form, string.match(rest, '^%S+')) then break end
    changed = true
    redis.call('ZREM', KEYS[2], token)
    redis.call('HDEL', KEYS[3], token)
    if lives then
      local till = now + ttl
      if token ~= asker and alive < till then till = alive end
      local fence = install(token, form, till, rest)
      if token ~= asker then
        granted = granted + 1
        if channel ~= '-' then
          told[#told + 1] = { token, channel,
            token .. ' ' .. string.format('%.0f', ticket) .. ' ' .. fence }
        end
      end
    end
  end
  return told, changed
end

-- State first, messages last and by pcall: see advance in queue.lua. Whom nobody hears is dead:
-- its place is the next one's.
local function advance(asker, changed)
  repeat
    local told, moved = pass(asker)
    if moved or changed then save() end
    changed = false
    for _, message in ipairs(told) do
      if redis.pcall('PUBLISH', message[2], message[3]) == 0 then
        drop(message[1])
        changed = true
      end
    end
  until not changed
end
