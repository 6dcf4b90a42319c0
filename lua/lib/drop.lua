-- @include bump
-- @include erase
-- drop_letters: drop the dead letters of a lane beyond `most` (-1 for no limit),
-- oldest first, at most 100. Returns whether there may be more.
local function drop_letters(i, most)
  local over = most >= 0 and redis.call("ZCARD", dead_key(i)) - most or 0
  if over <= 0 then return false end
  local oldest = redis.call("ZRANGE", dead_key(i), 0, math.min(over, 100) - 1)
  erase(oldest)
  redis.call("ZREM", dead_key(i), unpack(oldest))
  bump(i, nil, "dropped", #oldest)
  return over > 100
end
