-- @include text
-- The clock is Redis's own, and never less than any instant seen before, so
-- that a failover or a step back cannot turn order or leases around.
-- `now` is the instant of this call; `next_tick` gives instants that no other
-- call has had or will have: they order jobs strictly and serve as fences.
local now, tick
local function start_clock(seen, floor)
  local t = redis.call("TIME")
  now = t[1] * 1000000 + t[2]
  if seen and seen > now then now = seen end
  if floor and floor > now then now = floor end
  tick = now
end
local function next_tick()
  tick = tick + 1
  return tick
end
