-- Prepended to the scripts that grant: now and then they forget some of what was abandoned long ago.
local function forget_some()
  local sample = redis.call('HRANDFIELD', KEYS[1], 8, 'WITHVALUES')
  for i = 1, #sample, 2 do
    if string.sub(sample[i], 1, 1) == '=' and is_whole(sample[i + 1])
      and tonumber(string.sub(sample[i + 1], 35, 50)) + 600000000 < now then
      redis.call('HDEL', KEYS[1], sample[i])
    end
  end
end
