-- claim: take in outcomes, bring back what is due or lost, then start jobs on free slots.
-- FLAGS   allow-oom
-- KEYS    state jobs runs outcomes history progress ended watchers workers beats tasks task_counts call doorbell
-- KEYS    waiting* scheduled* leases* counts* wake* dead*
-- ARGV    worker_id version:int seq:int repeated:int fence_floor:int free:int look:int
-- EACH    lane served:int running:int reserve:int listening:int
-- EACH    outcome lane:int id fence:str kind number:int body
-- EACH    child outcome:int lane:int id record when
-- RETURNS {"ok", now, wake_after, more, {stale id...}, {paused i...}, row...}
--         row: id record lane fence attempt score enqueued
--         wake_after: µs after which the caller should claim again although nothing
--         wakes it, -1 if another worker has that watch; more: 1 when work was left
--         over for want of time
-- ERRORS  config: the lanes changed, ask for them and call again
-- COST    O(lanes + (outcomes + claimed) × log depth)
-- KEEPS   an id is in one place; running = leases; reserved slots stay free for their lane
--
-- Order. The value of a waiting job is priority + min(aging × wait, cap). Inside
-- a lane it falls with the score, so only heads are compared. Equal values: the
-- higher priority, then the earlier score.
--
-- Reserves. A job of lane x may start if the slots still free after it are
-- enough for what other lanes lack of their reserve in this worker.
--
-- Wake-ups. A worker that listens holds a blocking pop on the tokens of the
-- lanes its free slots may take. When this call fills those slots, the doorbell
-- ends the pop before any token of this call is put: a token is never given to
-- a worker that cannot use it. Proof of no lost wake-up: a token is put by all
-- that makes work ready; it goes to one that listens, who then claims; each claim
-- puts it again while work remains; a claim that fills the last usable slot
-- ends the wait in the same script, so a token that a worker got was sent to it
-- while it had a slot, and if a claim of its own filled that slot since, that
-- claim put the token again.
--
-- Repeats. A worker claims one call at a time. seq names the call; the ids it
-- got are kept a minute, so that a call whose reply was lost can be asked again.
-- @include clock
-- @include config
-- @include settle
-- @include sweep
-- @include promote
local rows = {}
local function add_row(id, record, i, run)
  local n = #rows
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4] = id, record, i, run.fence
  rows[n + 5], rows[n + 6], rows[n + 7] = run.attempt, run.score, run.enqueued
end
local hints = redis.call(
  "HMGET", state_key, "clock", "config", "version", "next_due", "watch_until", "watcher", "swept"
)
if tonumber(hints[3] or "0") ~= version then return { "config" } end
start_clock(tonumber(hints[1] or "0"), fence_floor)
next_due, watch_until = tonumber(hints[4] or nil), tonumber(hints[5] or nil)
local watcher, swept = hints[6], tonumber(hints[7] or "0")
local config = cjson.decode(hints[2]).lanes

if repeated == 1 then
  local past = redis.call("GET", call_key)
  if past and string.match(past, "^%d+") == int(seq) then
    for id, fence in string.gmatch(past, " ([^ :]+):(%d+)") do
      local line = redis.call("HGET", runs_key, id)
      local run = line and read_run(line)
      if run and run.fence == fence then
        for i = 1, lanes_n do
          if config[i][C_NAME] == run.lane then
            add_row(id, redis.call("HGET", jobs_key, id) or "", i, run)
          end
        end
      end
    end
    return { "ok", int(now), -1, 1, {}, {}, unpack(rows) }
  end
end

local function dead_max_of(i)
  return config[i][C_DEAD_MAX]
end
local stale = settle(dead_max_of)

local more = 0
if look == 1 or now >= swept + 250000 or swept > now then
  local is_more = sweep(dead_max_of, function(i)
    return config[i][C_DEAD_AGE]
  end)
  if is_more then more = 1 end
  redis.call("HSET", state_key, "swept", int(is_more and 0 or now))
end
if next_due and next_due <= now then
  next_due = promote()
  if next_due and next_due <= now then more = 1 end
end

local priority, aging, cap = {}, {}, {}
local served, running, reserve, listening = {}, {}, {}, {}
local waiting, paused = {}, {}
local short = 0
for i = 1, lanes_n do
  local lane, at = config[i], lane_at + (i - 1) * lane_w
  priority[i], aging[i], cap[i] = lane[C_PRIORITY], lane[C_AGING], lane[C_CAP]
  running[i], reserve[i] = tonumber(ARGV[at + LANE_RUNNING]), tonumber(ARGV[at + LANE_RESERVE])
  listening[i] = ARGV[at + LANE_LISTENING] == "1"
  if running[i] < reserve[i] then short = short + reserve[i] - running[i] end
  if lane[C_PAUSED] == 1 then
    paused[#paused + 1] = i
  else
    served[i] = ARGV[at + LANE_SERVED] == "1"
  end
end

-- heads[i] are ids and scores in turn, from position at[i] on; waiting[i] is
-- whether the lane has work beyond what was picked.
local heads, at, asked = {}, {}, {}
local function fetch(i, offset, n)
  heads[i] = redis.call("ZRANGE", waiting_key(i), offset, offset + n - 1, "WITHSCORES")
  at[i], asked[i] = 1, n
  waiting[i] = heads[i][1] ~= nil
end
local function may_start(i)
  local own = reserve[i] - running[i]
  if own < 0 then own = 0 end
  return free - 1 >= short - own
end
local function occupy(i, n)
  local before = reserve[i] - running[i]
  running[i] = running[i] + n
  local after = reserve[i] - running[i]
  short = short + math.max(after, 0) - math.max(before, 0)
  free = free - n
end

local run_args, call_line = {}, {}
local wanted = free
if wanted > 0 then
  for i = 1, lanes_n do
    if config[i][C_PAUSED] == 0 then fetch(i, 0, served[i] and math.min(wanted + 1, 33) or 1) end
  end
  local round = 0
  while free > 0 do
    -- Pick by value until the slots are taken or nothing may start.
    local picks, picked = {}, 0
    while free > 0 do
      local best, best_value, best_score
      for i = 1, lanes_n do
        if waiting[i] and served[i] and may_start(i) then
          local score = tonumber(heads[i][at[i] + 1])
          local gain = aging[i] * (now - score)
          if gain > cap[i] then gain = cap[i] end
          local value = priority[i] + gain
          if
            not best
            or value > best_value
            or (
              value == best_value
              and (
                priority[i] > priority[best]
                or (priority[i] == priority[best] and score < best_score)
              )
            )
          then
            best, best_value, best_score = i, value, score
          end
        end
      end
      if not best then break end
      local of_lane = picks[best]
      if not of_lane then
        of_lane = {}
        picks[best] = of_lane
      end
      local n = #of_lane
      of_lane[n + 1], of_lane[n + 2] = heads[best][at[best]], heads[best][at[best] + 1]
      picked = picked + 1
      occupy(best, 1)
      -- A start keeps to the order of priorities if no strictly higher lane has
      -- work at this moment, whether or not this worker serves it.
      local in_order = true
      for i = 1, lanes_n do
        if waiting[i] and priority[i] > priority[best] then in_order = false end
      end
      of_lane[n + 3] = in_order
      at[best] = at[best] + 2
      if heads[best][at[best]] == nil then
        if #heads[best] < 2 * asked[best] then
          waiting[best] = false
        else
          -- The chunk is used up: look behind what this round has picked.
          fetch(best, #of_lane / 3, math.min(free + 1, 129))
        end
      end
    end
    if picked == 0 then break end
    for i, of_lane in pairs(picks) do
      local ids = {}
      for j = 1, #of_lane, 3 do
        ids[#ids + 1] = of_lane[j]
      end
      local records = redis.call("HMGET", jobs_key, unpack(ids))
      local past = redis.call("HMGET", runs_key, unpack(ids))
      local deadline = int(now + config[i][C_LEASE])
      local started = int(now)
      local leases = {}
      for j, id in ipairs(ids) do
        local record, score = records[j], tonumber(of_lane[3 * j - 1])
        local head = record and head_of(record)
        local run
        if past[j] then
          run = read_run(past[j])
        else
          local enqueued = score
          if head and #head > 0 then
            enqueued = option_of(head, "q") or (score + (option_of(head, "b") or 0))
          end
          run = {
            attempt = 0,
            enqueued = int(enqueued),
            losses = 0,
            cancel = "0",
            task = head and task_of(head) or "?",
          }
        end
        run.lane, run.worker, run.score, run.started = config[i][C_NAME], worker_id, int(score), "0"
        run.fence = "0"
        local expires = head and option_of(head, "x")
        expires = expires and tonumber(run.enqueued) + expires or (head and option_of(head, "X"))
        if not record then
          -- The body was evicted or deleted: the letter says so, with no body.
          occupy(i, -1)
          bump(i, run.task, "missing", 1)
          finish(i, id, "dead", run, 0, "!body missing", dead_max_of(i))
        elseif run.attempt == 0 and expires and expires <= now then
          occupy(i, -1)
          finish(i, id, "expired", run, option_of(head, "r") or 300000000, "")
        else
          run.attempt = run.attempt + 1
          run.started = started
          run.fence = int(next_tick())
          leases[#leases + 1] = deadline
          leases[#leases + 1] = id
          run_args[#run_args + 1] = id
          run_args[#run_args + 1] = table.concat({
            run.fence, worker_id, run.lane, run.attempt, run.score, started, run.enqueued,
            run.losses, run.cancel, run.task,
          }, " ")
          call_line[#call_line + 1] = id .. ":" .. run.fence
          add_row(id, record, i, run)
          bump(i, run.task, "started", 1)
          if of_lane[3 * j] then bump(i, nil, "in_order", 1) end
        end
      end
      if #leases > 0 then redis.call("ZADD", leases_key(i), unpack(leases)) end
      redis.call("ZREM", waiting_key(i), unpack(ids))
    end
    -- Expired and missing jobs gave their slots back: fill those, but not for ever.
    round = round + 1
    if free == 0 then break end
    if round == 8 then
      more = 1
      break
    end
    for i = 1, lanes_n do
      if served[i] then fetch(i, 0, math.min(free + 1, 33)) end
    end
  end
  if #run_args > 0 then redis.call("HSET", runs_key, unpack(run_args)) end
end

-- Slots that are no use to a lane that is listened for: end the wait first, then
-- put the tokens, so that they go to others.
for i = 1, lanes_n do
  if listening[i] and not (served[i] and free > 0 and may_start(i)) then
    redis.call("DEL", doorbell_key)
    redis.call("LPUSH", doorbell_key, "1")
    redis.call("EXPIRE", doorbell_key, 60)
    break
  end
end
if wanted > 0 then
  for i = 1, lanes_n do
    if waiting[i] then arm(i) end
  end
end

-- The watch: one idle worker has promised to look at the next due instant.
local wake_after = -1
if free > 0 then
  local first = next_due
  for i = 1, lanes_n do
    local head = redis.call("ZRANGE", leases_key(i), 0, 0, "WITHSCORES")
    if head[2] and (not first or tonumber(head[2]) < first) then first = tonumber(head[2]) end
  end
  if first and (watcher == worker_id or not watch_until or watch_until > first or watch_until < now) then
    redis.call("HSET", state_key, "watcher", worker_id, "watch_until", int(first))
    wake_after = math.max(first - now, 0)
  end
elseif watcher == worker_id then
  -- No slot free to use what becomes due: leave the watch to another, and wake
  -- one for it if that is sooner than an idle worker looks by itself.
  redis.call("HDEL", state_key, "watcher", "watch_until")
  if watch_until and watch_until < now + 1000000 then
    for i = 1, lanes_n do
      arm(i)
    end
  end
end
redis.call("SET", call_key, int(seq) .. " " .. table.concat(call_line, " "), "EX", 60)
keep_clock()
flush_finished()
flush_counts()
return { "ok", int(now), wake_after, more, stale, paused, unpack(rows) }
