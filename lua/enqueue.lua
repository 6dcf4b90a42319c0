-- enqueue: store jobs in their lanes and wake a worker for each lane.
-- KEYS    session before state lanes jobs task_counts | waiting* scheduled* counts* wake*
-- ARGV    seq:int before_seq:int
-- EACH    lane name
-- EACH    job lane:int id record when
-- RETURNS {"ok", i...}: i are the jobs, counted from 1, whose id was there already
--         {"again"}: this call was applied before the connection broke
-- ERRORS  unknown_lane NAME
-- COST    O(jobs × log depth)
-- KEEPS   a repeated call makes no second job; jobs of one call start in its order
--
-- Repeats: a connection's calls are applied in the order in which they were
-- written to it, so the greatest number applied tells of each earlier one
-- whether it was (session → seq). A call that is sent again over a new
-- connection names the old one and its number there as before and before_seq.
-- @include clock
-- @include bump
-- @include arm
local next_due, watch_until
local made
local function later()
  if not made then
    -- @include put
    made = put
  end
  return made
end
if before_seq > 0 and tonumber(redis.call("GET", before_key) or "0") >= before_seq then
  return { "again" }
end
for i = 1, lane_n do
  local name = ARGV[lane_at + (i - 1) * lane_w + LANE_NAME]
  if redis.call("HEXISTS", lanes_key, name) == 0 then return { "unknown_lane", name } end
end
local hints = redis.call("HMGET", state_key, "clock", "next_due", "watch_until")
start_clock(tonumber(hints[1] or "0"))
next_due, watch_until = tonumber(hints[2] or nil), tonumber(hints[3] or nil)
redis.call("SET", session_key, int(seq), "EX", 60)
local reply = { "ok" }
local touched = {}
for j = 1, job_n do
  local at = job_at + (j - 1) * job_w
  local i, id = tonumber(ARGV[at + JOB_LANE]), ARGV[at + JOB_ID]
  local record, when = ARGV[at + JOB_RECORD], ARGV[at + JOB_WHEN]
  local is_new, is_ready
  if when == "" then
    local task = string.match(record, "^([^\t\n]*)[^\n]*\n") or "?"
    is_new = redis.call("HSETNX", jobs_key, id, record) == 1
    if is_new then
      is_ready = true
      redis.call("ZADD", waiting_key(i), int(next_tick()), id)
      bump(i, task, "enqueued", 1)
    else
      bump(i, task, "deduplicated", 1)
    end
  else
    is_new, is_ready = later()(i, id, record, when)
  end
  if not is_new then
    reply[#reply + 1] = j
  elseif is_ready then
    touched[i] = true
  end
end
for i in pairs(touched) do
  arm(i)
end
keep_clock()
flush_counts()
put_tokens()
return reply
