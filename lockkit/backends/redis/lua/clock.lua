-- Prepended to every script: the layout, the server's clock in µs, and numbers as strings of equal
-- length.
local VERSION = '4'
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function us(number) return string.format('%016.0f', number) end
