-- @include run
-- @include arm
-- @include place
-- @include schedule
-- @include mark
-- back_to_front: a job takes its old place in its lane again. Its score is the
-- instant at which it became ready, older than that of whatever came later.
local function back_to_front(i, id, run)
  run.fence = "0"
  write_run(id, run)
  mark_returned(id)
  redis.call("ZADD", waiting_key(i), int(place(i, tonumber(run.score))), id)
  redis.call("ZREM", leases_key(i), id)
  arm(i)
end
-- back_later: a job becomes ready again at `due`.
local function back_later(i, id, run, due)
  run.fence = "0"
  write_run(id, run)
  mark_returned(id)
  schedule(i, id, due)
  redis.call("ZREM", leases_key(i), id)
end
