-- @include run
-- @include bump
-- @include head
-- @include drop
-- @include ledger
-- finish: end a job. Its outcome line is
--   state lane attempt enqueued score started ended worker fence task
-- then a newline and the opaque result or error. It is kept `keep` µs; with 0
-- nothing of the job stays. A dead letter is kept in the lane's own set, capped
-- by dead_max. Whoever watches the id is told the outcome itself, so that it
-- arrives although nothing is kept. The job's place (waiting, scheduled or
-- leases) is left by the caller.
local watched
local function forget_asides(id, run)
  if run.flags % 4 > 1 then redis.call("HDEL", progress_key, id) end
  if run.flags > 3 then redis.call("HDEL", history_key, id) end
end
local function finish(i, id, state, run, keep, body, dead_max)
  bump(i, run.task, state, 1)
  if watched == nil then watched = redis.call("EXISTS", watchers_key) == 1 end
  local is_watched = watched and redis.call("ZREM", watchers_key, id) == 1
  if keep <= 0 and state ~= "dead" and not is_watched then
    gone[#gone + 1] = id
    forget_asides(id, run)
    return
  end
  local line = table.concat({
    state,
    run.lane,
    run.attempt,
    run.enqueued,
    run.score,
    run.started,
    int(now),
    run.worker,
    run.fence,
    run.task,
  }, " ") .. "\n" .. body
  if is_watched then
    redis.call("PUBLISH", string.sub(jobs_key, 1, -5) .. "ended:" .. id, line)
  end
  if state == "dead" then
    redis.call("HSET", outcomes_key, id, line)
    redis.call("ZADD", dead_key(i), int(now), id)
    redis.call("HDEL", runs_key, id)
    drop_letters(i, dead_max)
  elseif keep > 0 then
    kept[#kept + 1] = id
    kept[#kept + 1] = line
    ends[#ends + 1] = int(now + keep)
    ends[#ends + 1] = id
  else
    gone[#gone + 1] = id
    forget_asides(id, run)
  end
end
