-- free_from: the first microsecond at or after `at` that no member of the
-- sorted set has for a score. Scores in one lane are unique, so that jobs made
-- ready for the same instant keep the order in which they came, never that of
-- their ids. Scores from `at` on that are taken without a gap are counted by
-- bisection: O(log^2 N).
local function free_from(key, at)
  if redis.call("ZCOUNT", key, int(at), int(at)) == 0 then return at end
  local low, high = 1, 2
  while redis.call("ZCOUNT", key, int(at), int(at + high - 1)) == high do
    low, high = high, high * 2
  end
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if redis.call("ZCOUNT", key, int(at), int(at + middle - 1)) == middle then
      low = middle
    else
      high = middle
    end
  end
  return at + low
end
