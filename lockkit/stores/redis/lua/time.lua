-- Prepended to every script: the layout's version, and the server's clock in µs.
local VERSION = '4'
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
