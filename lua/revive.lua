-- revive: give ended jobs a new life in the lane that they ended in.
-- KEYS    state jobs runs outcomes history progress ended task_counts | waiting* counts* wake* dead*
-- EACH    job id
-- EACH    lane name
-- RETURNS {"ok", word...}: for each job revived, no_body, unknown, or the state it is in
-- COST    O(jobs × log N)
-- KEEPS   attempts start from 1 again, history stays; enqueued counts the new life
-- @include clock
-- @include head
-- @include bump
-- @include arm
start_clock(tonumber(redis.call("HGET", state_key, "clock") or "0"))
local index = {}
for i = 1, lane_n do
  index[ARGV[lane_at + (i - 1) * lane_w + LANE_NAME]] = i
end
local reply, touched = { "ok" }, {}
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
    redis.call("ZADD", waiting_key(i), int(next_tick()), id)
    redis.call("HDEL", outcomes_key, id)
    redis.call("ZREM", ended_key, id)
    redis.call("ZREM", dead_key(i), id)
    redis.call("HDEL", progress_key, id)
    redis.call("HDEL", runs_key, id)
    bump(i, task_of(head_of(record)), "enqueued", 1)
    touched[i] = true
    reply[#reply + 1] = "revived"
  end
end
for i in pairs(touched) do
  arm(i)
end
keep_clock()
flush_counts()
put_tokens()
return reply
