-- @include free_slot
-- @include arm
-- schedule: park a job until `due`. When that is sooner than anybody has
-- promised to look, one worker is woken to take the watch over. The script has
-- read both instants into next_due and watch_until. Returns the instant it got.
local function schedule(i, id, due)
  due = free_from(scheduled_key(i), due)
  redis.call("ZADD", scheduled_key(i), int(due), id)
  if not next_due or due < next_due then
    next_due = due
    redis.call("HSET", state_key, "next_due", int(due))
    if not watch_until or watch_until < now or due < watch_until then arm(i) end
  end
  return due
end
