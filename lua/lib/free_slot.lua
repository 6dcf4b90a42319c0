-- @include text
-- free_from: the first microsecond at or after `at` that no member of the
-- sorted set has for a score. Scores in one lane are unique, so that jobs made
-- ready for the same instant keep the order in which they came, never that of
-- their ids. Scores from `at` on that are taken without a gap are counted by
-- bisection: O(log^2 N). A call that asks for one instant again and again, as a
-- bulk enqueue does, starts behind its last answer.
local last_key, last_at, last_slot
local function free_from(key, at)
  local from = at
  if key == last_key and at == last_at then from = last_slot + 1 end
  local slot = from
  if redis.call("ZCOUNT", key, int(from), int(from)) > 0 then
    local low, high = 1, 2
    while redis.call("ZCOUNT", key, int(from), int(from + high - 1)) == high do
      low, high = high, high * 2
    end
    while high - low > 1 do
      local middle = math.floor((low + high) / 2)
      if redis.call("ZCOUNT", key, int(from), int(from + middle - 1)) == middle then
        low = middle
      else
        high = middle
      end
    end
    slot = from + low
  end
  last_key, last_at, last_slot = key, at, slot
  return slot
end
