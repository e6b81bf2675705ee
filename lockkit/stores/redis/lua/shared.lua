-- Prepended to the scripts on names that several may hold. Mirrors lockkit/engine/grant.py.
--
-- KEYS: 1 to 5 as in store.lua, and
--   6 holders hash: token -> form (X exclusive, S shared) until fence granted renewed extended, of
--             fixed widths (1 16 16 16 16 16), then 'permits entrant ttl max_hold owner' (permits: how many
--             may hold it, 0: no limit but HOLD_MOST; entrant: who may enter again what it holds; - nobody)
-- A waiter's entry has its channel, its form, and then the same from permits on.
-- ARGV: =name used, then what each script says. used: kind and permits; *: any kind.
if record and not is_whole(record) then damaged('its record') end
redis.call('HLEN', KEYS[6])
local kind, permits = string.match(ARGV[2], '^(.)(%d*)$')
local known_kind = string.match(record or '', '^[^M]')
if kind == '*' then kind = known_kind end
local ours = known_kind and known_kind == kind
local holders = {}
if ours then
  local entries = redis.call('HGETALL', KEYS[6])
  for i = 1, #entries, 2 do
    local entry = entries[i + 1]
    local form, digits, entrant = is_holder(entry)
    if not form then damaged('one of its holders') end
    holders[entries[i]] = { form = form, till = tonumber(string.sub(digits, 1, 16)),
      fence = string.sub(digits, 17, 32), tail = string.sub(entry, 34),
      permits = tonumber(string.sub(digits, 81)), entrant = entrant }
  end
end

-- All live holders together. Each grant adds to it; it is computed anew only after a loss.
local together = nil

local function add(holder)
  together.count = together.count + 1
  together.excludes = together.excludes or holder.form == 'X'
  local most = holder.permits > 0 and holder.permits or HOLD_MOST
  if most < together.most then together.most = most end
  together[holder.form][holder.entrant] = holder
end

local function live()
  if not together then
    together = { count = 0, most = HOLD_MOST, X = {}, S = {} }
    for _, holder in pairs(holders) do
      if holder.till > now then add(holder) end
    end
  end
  return together
end

-- The first of the live holders, and when the next of them expires.
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
  if entrant == '-' then return nil end
  local alone, with_others = live().X[entrant], live().S[entrant]
  if alone or form == 'S' then return alone or with_others end
  return nil, with_others
end

-- Whether no live holder is in its way. The smallest number of permits applies.
local function has_room(form, entrant, most)
  if own(form, entrant) or live().count == 0 then return true end
  if form == 'X' or live().excludes then return false end
  most = tonumber(most)
  return live().count < live().most and (most == 0 or live().count < most)
end

local touched = false -- whether this script has changed what is held

local function drop(token)
  touched, together, holders[token] = true, nil, nil
  redis.call('HDEL', KEYS[6], token)
end

local function as_entry(holder) return holder.form .. us(holder.till) .. holder.fence .. holder.tail end

local swept = false

local function drop_expired()
  if swept then return end
  swept = true
  local last = nil -- a name keeps the last words of one
  for token, holder in pairs(holders) do
    if holder.till <= now then
      drop(token)
      if not last or holder.till > last.till then last = holder end
    end
  end
  if last then note_entry(field, kind, as_entry(last), '') end
end

-- All exclusive claims of one owner have one fence: each may go on writing.
local function install(token, form, till, rest)
  drop_expired()
  touched = true
  local most, entrant = string.match(rest, '^(%d+) (%S+)')
  local held = form == 'X' and own(form, entrant)
  local fence = held and held.fence or number()
  local tail = stamp .. stamp .. us(0) .. rest
  live() -- before it is among them
  holders[token] = { form = form, till = till, fence = fence, tail = tail, entrant = entrant,
    permits = tonumber(most) }
  add(holders[token])
  redis.call('HSET', KEYS[6], token, form .. us(till) .. fence .. tail)
  return fence
end

-- Write the record of the name, by which it is listed and known to be in use. Its permits also take
-- account of a holder whose grant was handed over and has expired: its first extension may still come.
local function save()
  if not next(holders) and redis.call('ZCARD', KEYS[2]) == 0 then
    redis.call('HDEL', KEYS[1], field)
    return
  end
  local last, excludes, most = 0, 0, HOLD_MOST
  for _, holder in pairs(holders) do
    if holder.permits > 0 and holder.permits < most then most = holder.permits end
    if holder.till > last then last = holder.till end
    if holder.form == 'X' then excludes = 1 end
  end
  redis.call('HSET', KEYS[1], 'f', counter, field,
    kind .. '1' .. string.format('%-32.0f', kind == 'S' and most or excludes) .. us(last))
  redis.call('PEXPIRE', KEYS[6], math.max(math.ceil((last - now + DAY) / 1000), 1))
end

-- The first waiter. One that cannot be read ends the script, unless it has changed something
-- already; then nobody is granted past it, and the next script ends.
local function first_waiting()
  local head = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  local entry = head[1] and redis.call('HGET', KEYS[3], head[1])
  local channel, form, rest, ttl = waiter(entry or '', false)
  if not entry or channel then
    return head[1], head[2], channel, form, rest, ttl
  elseif not touched then
    damaged('its queue')
  end
end

-- While there is room, grant the first waiter that is alive, and forget the dead ones before it.
-- Returns whom to tell, whether anything has changed, and how many more may be passed.
local function pass(asker, most)
  local told, changed = {}, false
  while most > 0 do
    local token, ticket, channel, form, rest, ttl = first_waiting()
    if not token then break end
    local alive = alive_until(token)
    local lives = channel and (token == asker or alive > now)
    if lives then
      local permits_, entrant = string.match(rest, '^(%d+) (%S+)')
      if not has_room(form, entrant, permits_) then break end
    end
    changed, most = true, most - 1
    leave(token)
    if lives then
      local till = now + ttl
      if token ~= asker and alive < till then till = alive end
      local fence = install(token, form, till, rest)
      if token ~= asker and channel ~= '-' then
        told[#told + 1] = { token, channel,
          token .. ' ' .. string.format('%.0f', ticket) .. ' ' .. fence }
      end
    end
  end
  return told, changed, most
end

-- State first, messages last and by pcall: see advance in queue.lua. A waiter that does not listen
-- is dead: the next one gets its place.
local function advance(asker, changed)
  local most, told, moved = PASS_MOST, nil, nil
  repeat
    told, moved, most = pass(asker, most)
    if most == 0 and not waits() then empty_queue() end
    if moved or changed then save() end
    changed = false
    for _, message in ipairs(told) do
      if not is_heard(message[2], message[3]) then
        drop(message[1])
        changed = true
      end
    end
  until not changed
end
