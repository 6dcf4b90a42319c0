-- revive: give ended jobs a new life in the lane that they ended in.
-- KEYS    state jobs runs outcomes history progress ended task_counts | waiting* counts* wake* dead* shares*
-- EACH    job id
-- EACH    lane name
-- RETURNS {"ok", word...}: for each job revived, no_body, unknown, or open (it has not ended)
-- COST    O(jobs × log N)
-- KEEPS   attempts start from 1 again, history stays; enqueued counts the new life,
--         which is as if enqueued now, with the job's boost and with no expiry
-- @include clock
-- @include mark
-- @include run
-- @include bump
-- @include arm
-- @include place
-- @include fair
start_clock(tonumber(redis.call("HGET", state_key, "clock") or "0"))
local index = {}
for i = 1, lane_n do
  index[ARGV[lane_at + (i - 1) * lane_w + LANE_NAME]] = i
end
local reply = { "ok" }
for j = 1, job_n do
  local id = ARGV[job_at + (j - 1) * job_w + JOB_ID]
  local outcome = redis.call("HGET", outcomes_key, id)
  local record = redis.call("HGET", jobs_key, id)
  local lane = outcome and string.match(outcome, "^%S+ (%S+)")
  local i = lane and index[lane]
  if not outcome then
    reply[#reply + 1] = record and "open" or "unknown"
  elseif not record then
    reply[#reply + 1] = "no_body"
  elseif not i then
    reply[#reply + 1] = "unknown"
  else
    local head = head_of(record)
    local since = next_tick()
    local boost, weights = option_of(head, "b") or 0, fair_rule(i)
    if weights then redis.call("HSET", jobs_key, id, with_ready(record, since)) end
    local score = int(weights and fair_place(i, weights, record, boost) or place(i, since - boost))
    local has_history = redis.call("HEXISTS", history_key, id)
    -- A job with a run line is not in its first life: it does not expire.
    write_run(id, {
      fence = "0",
      worker = "-",
      lane = lane,
      attempt = 0,
      score = score,
      started = "0",
      enqueued = int(since),
      losses = 0,
      flags = 4 * has_history,
      task = task_of(head),
    })
    mark_returned(id)
    redis.call("ZADD", waiting_key(i), score, id)
    redis.call("HDEL", outcomes_key, id)
    redis.call("ZREM", ended_key, id)
    redis.call("ZREM", dead_key(i), id)
    redis.call("HDEL", progress_key, id)
    bump(i, task_of(head), "enqueued", 1)
    arm(i)
    reply[#reply + 1] = "revived"
  end
end
-- @include end_clock
-- @include end_counts
-- @include end_tokens
return reply
