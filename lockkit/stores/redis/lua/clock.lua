-- Prepended to every script: the server's clock in µs, and numbers as strings of equal
-- length.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function us(number) return string.format('%016.0f', number) end
