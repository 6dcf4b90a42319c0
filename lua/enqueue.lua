-- enqueue: store jobs in their lanes and wake a worker for each lane.
-- KEYS    session before state lanes jobs task_counts | waiting* scheduled* counts* wake* shares*
-- ARGV    seq:int before_seq:int
-- EACH    lane name
-- EACH    job lane:int id record when
-- RETURNS {"ok", i...}: i are the jobs, counted from 1, whose id was there already
--         {"again"}: this call was applied before the connection broke
-- ERRORS  unknown_lane NAME
--         full NAME max_depth: the lane has no room for all its jobs of this call
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
-- @include doors
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
local hints = redis.call("HMGET", state_key, "clock", "next_due", "watch_until", "shut", "doors")
start_clock(tonumber(hints[1] or "0"))
next_due, watch_until = tonumber(hints[2] or nil), tonumber(hints[3] or nil)
doors = hints[5] and cjson.decode(hints[5]) or false
local is_fair = {}
if doors then
  local coming = {}
  for j = 1, job_n do
    local i = tonumber(ARGV[job_at + (j - 1) * job_w + JOB_LANE])
    coming[i] = (coming[i] or 0) + 1
  end
  for i, n in pairs(coming) do
    local door = door_of(i)
    is_fair[i] = door and door.weights ~= nil
    if door and door.most then
      local depth = redis.call("ZCARD", waiting_key(i)) + redis.call("ZCARD", scheduled_key(i))
      if depth + n > door.most then return { "full", lane_name(i), int(door.most) } end
    end
  end
end
redis.call("SET", session_key, int(seq), "EX", 60)
local reply = { "ok" }
local touched = {}
-- Jobs that are ready now go in few commands: looked up, stored and placed together.
-- At most 1,000 at a time, as that many bodies and ids are what unpack can take.
local plain, plain_ids = {}, {}
local function flush_plain()
  local bodies, places, seen, there = {}, {}, {}, nil
  local is_alone = #plain == 1
  if is_alone then
    local record = ARGV[job_at + (plain[1] - 1) * job_w + JOB_RECORD]
    there = { redis.call("HSETNX", jobs_key, plain_ids[1], record) == 0 }
  else
    there = redis.call("HMGET", jobs_key, unpack(plain_ids))
  end
  for n, j in ipairs(plain) do
    local at = job_at + (j - 1) * job_w
    local i, id, record = tonumber(ARGV[at + JOB_LANE]), plain_ids[n], ARGV[at + JOB_RECORD]
    local task = string.match(record, "^([^\t\n]*)[^\n]*\n") or "?"
    if there[n] or seen[id] then
      reply[#reply + 1] = j
      bump(i, task, "deduplicated", 1)
    else
      seen[id] = true
      local to = places[i]
      if not to then
        to = {}
        places[i] = to
      end
      to[#to + 1] = int(next_tick())
      to[#to + 1] = id
      bodies[#bodies + 1] = id
      bodies[#bodies + 1] = record
      bump(i, task, "enqueued", 1)
    end
  end
  if #bodies > 0 and not is_alone then redis.call("HSET", jobs_key, unpack(bodies)) end
  for i, to in pairs(places) do
    redis.call("ZADD", waiting_key(i), unpack(to))
    touched[i] = true
  end
  plain, plain_ids = {}, {}
end
for j = 1, job_n do
  local at = job_at + (j - 1) * job_w
  local when = ARGV[at + JOB_WHEN]
  if when == "" and not is_fair[tonumber(ARGV[at + JOB_LANE])] then
    plain[#plain + 1] = j
    plain_ids[#plain_ids + 1] = ARGV[at + JOB_ID]
    if #plain == 1000 then flush_plain() end
  else
    -- In order: what comes before it is placed before it.
    if #plain > 0 then flush_plain() end
    local i = tonumber(ARGV[at + JOB_LANE])
    local is_new, is_ready = later()(i, ARGV[at + JOB_ID], ARGV[at + JOB_RECORD], when)
    if not is_new then
      reply[#reply + 1] = j
    elseif is_ready then
      touched[i] = true
    end
  end
end
if #plain > 0 then flush_plain() end
for i in pairs(touched) do
  -- A lane at its limit of running jobs or of its rate wakes nobody.
  local name = hints[4] and "," .. ARGV[lane_at + (i - 1) * lane_w + LANE_NAME] .. ","
  if not name or not string.find(hints[4], name, 1, true) then arm(i) end
end
-- @include end_clock
-- @include end_counts
-- @include end_tokens
return reply
