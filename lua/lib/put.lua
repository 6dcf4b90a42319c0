-- @include head
-- @include bump
-- @include place
-- @include schedule
-- @include fair
-- put: store a new job and make it waiting or scheduled; false when its id is
-- there already. `when` is empty for now, "-N" for now with a head start of N
-- µs, "+N" for N µs from now, "@N" for the instant N.
local function put(i, id, record, when)
  local task = task_of(head_of(record))
  local kind = string.sub(when, 1, 1)
  local score
  if kind == "" or kind == "-" then
    score = next_tick()
    local boost = kind == "-" and tonumber(string.sub(when, 2)) or 0
    local weights = fair_rule(i)
    if weights then
      record = with_ready(record, score)
    elseif kind == "-" then
      score = place(i, score - boost)
    end
    if redis.call("HSETNX", jobs_key, id, record) == 0 then
      bump(i, task, "deduplicated", 1)
      return false
    end
    if weights then score = fair_place(i, weights, record, boost) end
    redis.call("ZADD", waiting_key(i), int(score), id)
  else
    local due = tonumber(string.sub(when, 2)) or 0
    if kind == "+" then due = now + due end
    local stop = string.find(record, "\n", 1, true)
    if stop then
      record = string.sub(record, 1, stop - 1) .. "\tq=" .. int(now) .. string.sub(record, stop)
    end
    if redis.call("HSETNX", jobs_key, id, record) == 0 then
      bump(i, task, "deduplicated", 1)
      return false
    end
    schedule(i, id, due)
  end
  bump(i, task, "enqueued", 1)
  return true, kind == "" or kind == "-"
end
