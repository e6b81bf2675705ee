-- Give a claim back and grant the head of the queue. Goes on where release_free ends.
if record and not is_whole(record) then damaged('its record') end
local reply, mine = 0, record and string.sub(record, 3, 34) == ARGV[2]
if mine then
  if tonumber(string.sub(record, 35, 50)) > now or is_handed_mutex(record) then reply = 1 end
  advance(field)
else
  local last = redis.call('HGET', KEYS[1], 'z')
  if last and (moment(last) or now + 1) > now and redis.call('ZSCORE', KEYS[4], 'b:' .. ARGV[2]) then
    reply = 2
  end
end
if ARGV[3] == '1' then bury(ARGV[2]) end
return reply
