-- Prepended to the scripts of claims that wait their turn.
local fair = true
