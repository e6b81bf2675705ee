-- Prepended to the scripts on names that several may hold.
local HOLD_MOST = 10000 -- most steps read all who hold the name
