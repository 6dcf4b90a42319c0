-- claim: take in outcomes, bring back what is due or lost, then start jobs on free slots.
-- FLAGS   allow-oom
-- KEYS    state jobs runs outcomes history progress ended watchers workers beats fleet parked tasks task_counts call doorbell
-- KEYS    waiting* scheduled* leases* counts* wake* dead* shares*
-- ARGV    worker_id version:int seq:int repeated:int fence_floor:int free:int most:int look:int seats rules kinds slots:int limited
-- EACH    lane lease:int
-- EACH    reserved lane:int running:int slots:int
-- EACH    outcome lane:int id fence:str kind number:int body
-- EACH    child outcome:int lane:int id record when
--         free: slots that are free; most: jobs that the reply may have
--         seats: a digit per lane, the sum of 1 served, 2 listened for, 4 paused
--         rules: JSON [[priority, aging per µs, cap], ...], and where a lane has limits
--         of its own [.., max_running, µs per start, µs of starts that may be caught up]
--         (-1: no max_running; 0: no rate); kinds: two characters per lane, which of the
--         rules is its. Many lanes are alike, and numbers are slow to read.
--         lane: one alone, where leases are alike
--         slots: the worker's, busy or free; limited: see lib/limits.lua, "" where no
--         lane has a limit
--         reserved: lanes of which this worker keeps slots, and how many of them run
-- RETURNS {"ok", now, wake_after, more, {stale id...}, {closed i...}, row...}
--         row: id record lane fence attempt ready enqueued; ready: when it became
--         ready, less its boost
--         wake_after: µs after which the caller should claim again although nothing
--         wakes it, -1 if another worker has that watch; more: 1 when work was left
--         over for want of time; closed: lanes not to listen for, since they are
--         paused or the fleet's reserves leave them nothing
-- ERRORS  config: the lanes changed, ask for them and call again
-- COST    O(lanes + (outcomes + claimed) × log depth)
-- KEEPS   an id is in one place; running = leases; reserved slots stay free for their lane
--
-- Order. The value of a waiting job is priority + min(aging × wait, cap). Inside
-- a lane it falls with the score, so only heads are compared. Equal values: the
-- higher priority, then the earlier score.
--
-- Reserves. A job of lane x may start if the slots still free after it are
-- enough for what other lanes lack of their reserve in this worker; and the
-- same over the fleet, where a lane has a reserve there (lib/limits.lua).
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
-- Overtaking. Where a job starts although one of a strictly higher lane waits that
-- could have had the slot, by aging that is, all that waits in that lane now is
-- overtaken. Until when jobs became ready that were is kept for the lane (`passed` in
-- the state: the version, then lane and instant in turn), and counted at their start.
--
-- Repeats. A worker claims one call at a time. seq names the call; the ids it
-- got (and, with fence 0, those that were stale) are kept a minute, so that a call
-- whose reply was lost can be asked again.
--
-- Speed. A job that is claimed for the first time and succeeds takes the short way
-- in the main text. All else is in slow(), whose functions are made only when a
-- call needs them: making thirty costs as much as three Redis commands. On the short
-- way a text becomes a number by reckoning with it, and words are joined by `..`:
-- tonumber reads them twice, string.format takes three times as long.
local redis, KEYS, ARGV = redis, KEYS, ARGV -- a global is looked up each time
-- @include clock
-- @include lane_name
-- @include bump
-- @include arm
-- @include ledger
local next_due, watch_until
local made
local function slow()
  if made then return made end
  -- @include settle
  -- @include sweep
  -- @include promote
  -- @include parking
  -- Row i of the config, see lib/configure.lua.
  local lanes
  local function row_of(i)
    lanes = lanes or cjson.decode(redis.call("HGET", state_key, "config")).lanes
    return lanes[i]
  end
  local function dead_max_of(i)
    return row_of(i)[7]
  end
  local function dead_age_of(i)
    return row_of(i)[8]
  end
  made = {
    -- Continue or begin the run of a job that is picked; and until when it may begin.
    start = function(id, record, score, worker, lane)
      local head = record and head_of(record) or "?"
      -- A record that is well says whether there is a run line.
      local may_have_run = head == "?" or option_of(head, "n")
      local line = may_have_run and redis.call("HGET", runs_key, id)
      local run = line and read_run(line)
      local is_new = not run
      if is_new then
        local enqueued = option_of(head, "q") or option_of(head, "y") or (tonumber(score) + (option_of(head, "b") or 0))
        run = { attempt = 0, enqueued = int(enqueued), losses = 0, flags = 0, task = task_of(head) }
      end
      run.attempt = run.attempt + 1
      run.lane, run.worker, run.score = lane, worker, int(tonumber(score))
      run.started, run.fence = "0", "0"
      -- Elsewhere the score tells when it became ready.
      local ready = option_of(head, "y")
      run.ready = ready and int(ready - (option_of(head, "b") or 0)) or run.score
      if not is_new then return run end
      local expires = option_of(head, "x")
      return run, expires and tonumber(run.enqueued) + expires or option_of(head, "X")
    end,
    -- Whether the outcome that is kept of a job was reported under this fence.
    is_recorded = function(id, fence)
      local line = redis.call("HGET", outcomes_key, id)
      local recorded = line and string.match(line, "^%S+ %S+ %d+ %d+ %d+ %d+ %d+ %S+ (%d+) ")
      return recorded == fence and fence ~= "0"
    end,
    keep_of = function(record)
      return option_of(head_of(record), "r") or 300000000
    end,
    line_of = line_of,
    option_of = option_of,
    finish = finish,
    put = put,
    read_run = read_run,
    settle = settle,
    promote = promote,
    parking_of = parking_of,
    dead_max_of = dead_max_of,
    sweep = function()
      return sweep(dead_max_of, dead_age_of)
    end,
    name_of = function(i)
      return row_of(i)[1]
    end,
  }
  return made
end
local rows = {}
local function add_row(id, record, i, fence, attempt, score, enqueued)
  local n = #rows
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4] = id, record, i, fence
  rows[n + 5], rows[n + 6], rows[n + 7] = attempt, score, enqueued
end
local hints = redis.call(
  "HMGET", state_key, "clock", "version", "next_due", "watch_until", "watcher", "swept",
  "watched", "capped", "passed"
)
if not hints[2] or hints[2] + 0 ~= version then return { "config" } end
start_clock((hints[1] or 0) + 0, fence_floor)
next_due, watch_until = hints[3] and hints[3] + 0, hints[4] and hints[4] + 0
local watcher, swept = hints[5], (hints[6] or 0) + 0
local now_text = int(now)

if repeated == 1 then
  local past = redis.call("GET", call_key)
  if past and string.match(past, "^%d+") == int(seq) then
    local was_stale = {}
    for word in string.gmatch(past, " ([^ ]+)") do
      local id, fence = string.match(word, "^(.*):(%d+)$")
      local line = fence ~= "0" and redis.call("HGET", runs_key, id)
      if fence == "0" then was_stale[#was_stale + 1] = id end
      local run = line and slow().read_run(line)
      if run and run.fence == fence then
        for i = 1, lanes_n do
          if slow().name_of(i) == run.lane then
            local record = redis.call("HGET", jobs_key, id) or "?\n"
            add_row(id, record, i, run.fence, run.attempt, run.score, run.enqueued)
          end
        end
      end
    end
    return { "ok", now_text, -1, 1, was_stale, {}, unpack(rows) }
  end
end

local stale = {}
if outcome_n > 0 then
  local ids, seen, settled, left = {}, {}, {}, {}
  for j = 1, outcome_n do
    ids[j] = ARGV[outcome_at + (j - 1) * outcome_w + OUTCOME_ID]
  end
  local lines = redis.call("HMGET", runs_key, unpack(ids))
  local is_watched = hints[7] and tonumber(hints[7]) >= now
  for j = 1, outcome_n do
    local at, id, line = outcome_at + (j - 1) * outcome_w, ids[j], lines[j]
    local i, given = ARGV[at + OUTCOME_LANE] + 0, ARGV[at + OUTCOME_FENCE]
    -- is_plain: a first attempt that lost no lease, was not asked to stop and told
    -- nothing of its progress; its line needs no further reading.
    local is_plain, fence, task = false, nil, nil
    if line and not seen[id] then
      fence, task = string.match(line, "^(%d+) %S+ %S+ 1 %d+ %d+ %d+ 0 0 (.*)$")
      is_plain = fence ~= nil
      if not is_plain then
        fence, task = string.match(line, "^(%d+) %S+ %S+ %d+ %d+ %d+ %d+ %d+ %d (.*)$")
      end
    end
    if not fence or fence ~= given or fence == "0" then
      -- A report counts only under the fence of its claim, and once. The same one
      -- again is no news, any other is stale.
      if seen[id] ~= given and not slow().is_recorded(id, given) then
        stale[#stale + 1] = id
        bump(i, task, "stale", 1)
      end
    else
      seen[id], settled[j] = fence, true
      local kind = ARGV[at + OUTCOME_KIND]
      if is_plain and kind == "succeeded" and not is_watched then
        bump(i, task, "succeeded", 1)
        local of_lane = left[i]
        if of_lane then
          of_lane[#of_lane + 1] = id
        else
          left[i] = { id }
        end
        local keep = ARGV[at + OUTCOME_NUMBER] + 0
        if keep <= 0 then
          gone[#gone + 1] = id
        else
          local worker, lane, place, began, enqueued =
            string.match(line, "^%d+ (%S+) (%S+) 1 (%d+) (%d+) (%d+) ")
          local n = #kept
          kept[n + 1], ends[n + 1] = id, int(now + keep)
          kept[n + 2] = "succeeded " .. lane .. " 1 " .. enqueued .. " " .. place .. " " .. began
            .. " " .. now_text .. " " .. worker .. " " .. fence .. " " .. task .. "\n"
            .. ARGV[at + OUTCOME_BODY]
          ends[n + 2] = id
        end
      else
        local number, body = tonumber(ARGV[at + OUTCOME_NUMBER]), ARGV[at + OUTCOME_BODY]
        local letters, run = slow().dead_max_of(i), slow().read_run(line)
        -- What the attempt of a job that is cancelled has enqueued is discarded too.
        if run.is_cancelled then settled[j] = nil end
        slow().settle(i, id, run, kind, number, body, letters)
      end
    end
  end
  for i, of_lane in pairs(left) do
    redis.call("ZREM", leases_key(i), unpack(of_lane))
  end
  -- Jobs that an attempt enqueued are committed with its outcome or not at all.
  local touched = {}
  for j = 1, child_n do
    local at = child_at + (j - 1) * child_w
    if settled[tonumber(ARGV[at + CHILD_OUTCOME])] then
      local i = tonumber(ARGV[at + CHILD_LANE])
      local _, is_ready =
        slow().put(i, ARGV[at + CHILD_ID], ARGV[at + CHILD_RECORD], ARGV[at + CHILD_WHEN])
      if is_ready then touched[i] = true end
    end
  end
  for i in pairs(touched) do
    arm(i)
  end
end

local more = 0
if look == 1 or now >= swept + 250000 or swept > now then
  local is_more = slow().sweep()
  if is_more then more = 1 end
  redis.call("HSET", state_key, "swept", int(is_more and 0 or now))
end
-- Tasks with a max_running of their own.
local parking = hints[8] and slow().parking_of(hints[8])
if parking and parking.release() then more = 1 end
if next_due and next_due <= now then
  next_due = slow().promote()
  if next_due and next_due <= now then more = 1 end
end

-- A table that is to have an entry for each lane. Where they are many it has its size
-- from the start: to let it grow costs more than to fill it.
local none = {}
local function per_lane()
  if lanes_n < 9 then return {} end
  return { unpack(none, 1, lanes_n) }
end
-- rule_by[i]: the rule of lane i; top: no lane has a higher priority. Read when first needed.
local rule_by, are_alike, top
local function read_rules()
  if rule_by then return end
  local distinct = cjson.decode(rules)
  local rule = distinct[1]
  rule_by, are_alike, top = per_lane(), #distinct == 1, rule[1]
  if are_alike then
    for i = 1, lanes_n do
      rule_by[i] = rule
    end
    return
  end
  local digits = { string.byte(kinds, 1, -1) }
  for i = 1, lanes_n do
    rule = distinct[64 * digits[2 * i - 1] + digits[2 * i] - 3119]
    rule_by[i] = rule
    if rule[1] > top then top = rule[1] end
  end
end

-- Who may take what: waiting[i] is whether lane i has work beyond what was picked.
local served, waiting, closed = { string.byte(seats, 1, -1) }, per_lane(), {}
local listened, is_listening = {}, false
for i = 1, lanes_n do
  local seat = served[i]
  if seat == 49 then -- "1", the most frequent by far
    served[i] = true
  else
    seat = seat - 48
    if seat >= 4 then
      closed[#closed + 1] = i
      served[i] = nil
      seat = seat - 4
    else
      served[i] = seat == 3
    end
    if seat >= 2 then
      listened[i], is_listening = true, true
    end
  end
end
local running, reserve, short = {}, {}, 0
for j = 1, reserved_n do
  local row = reserved_at + (j - 1) * reserved_w
  local i = ARGV[row + RESERVED_LANE] + 0
  running[i] = ARGV[row + RESERVED_RUNNING] + 0
  reserve[i] = ARGV[row + RESERVED_SLOTS] + 0
  short = short + math.max(reserve[i] - running[i], 0)
end
local limits
if limited ~= "" then
  -- @include limits
  limits = limits_of(limited, slots, free)
end
-- How many more jobs of lane i there are slots for, if no others start: a start of a
-- lane that lacks of its own reserve takes one of the slots kept for it.
local function own_seats_of(i)
  local room, kept_for_it = free - short, reserve[i]
  if kept_for_it and kept_for_it > running[i] then room = room + kept_for_it - running[i] end
  return room
end
-- The same, where the reserves of the fleet are kept too.
local function seats_of(i)
  return limits and limits.of_fleet(i, own_seats_of(i)) or own_seats_of(i)
end
-- How many may start.
local function room_of(i)
  return limits and limits.room_of(i, own_seats_of(i)) or own_seats_of(i)
end
local function occupy(i, n)
  if limits then limits.take(i, n) end
  if reserve[i] then
    local before = math.max(reserve[i] - running[i], 0)
    running[i] = running[i] + n
    short = short + math.max(reserve[i] - running[i], 0) - before
  end
  free, most = free - n, most - n
end

-- heads[i] are ids and scores in turn, from position at[i] on.
local heads, at, asked = per_lane(), per_lane(), per_lane()
local head_from, head_upto = "0", "0"
local fetch_offset, fetch_n = 0, 1
local function fetch(i, offset, n)
  -- Of many lanes as much is asked, and to write a number costs a tenth of that.
  if offset ~= fetch_offset or n ~= fetch_n then
    fetch_offset, fetch_n = offset, n
    head_from, head_upto = int(offset), int(offset + n - 1)
  end
  local found = redis.call("ZRANGE", waiting_key(i), head_from, head_upto, "WITHSCORES")
  heads[i], at[i], asked[i] = found, 1, n
  waiting[i] = found[1] ~= nil
end

-- passed[i]: a job of lane i was overtaken in this call; overtaken_until[i]: instant up to
-- which those were that became ready, by calls before this one.
local passed, overtaken_until
if hints[9] then
  local of_version, rest = string.match(hints[9], "^(%d+)(.*)$")
  if tonumber(of_version) == version then
    overtaken_until = {}
    for i, until_us in string.gmatch(rest, " (%d+) (%d+)") do
      overtaken_until[tonumber(i)] = tonumber(until_us)
    end
  end
end
local run_args, call_line = {}, {}
local wanted = math.min(free, most)
if wanted > 0 then
  -- How many lanes have work is asked first: most calls find one, most often the
  -- lane of the job that just ended, and need not look at the others.
  local heads_n, only, open_keys, open_n = 0, nil, {}, 0
  for i = 1, lanes_n do
    if served[i] ~= nil then
      open_n = open_n + 1
      open_keys[open_n] = waiting_key(i)
    end
  end
  local left_n = open_n > 0 and redis.call("EXISTS", unpack(open_keys)) or 0
  if left_n > 1 and left_n == open_n then
    heads_n = open_n
    for i = 1, lanes_n do
      waiting[i] = served[i] ~= nil or nil
    end
  elseif left_n > 1 then
    -- Of several lanes most will give nothing: which they are, and no more.
    for i = 1, lanes_n do
      if served[i] ~= nil and left_n > 0 then
        waiting[i] = left_n == open_n or redis.call("EXISTS", waiting_key(i)) == 1
        open_n = open_n - 1
        if waiting[i] then
          heads_n, left_n = heads_n + 1, left_n - 1
        end
      end
    end
  elseif left_n == 1 then
    -- Of one lane alone all that may be picked is read.
    local first = outcome_n > 0 and ARGV[outcome_at + OUTCOME_LANE] + 0 or 0
    for i = 0, lanes_n do
      local j = i == 0 and first or i
      if served[j] ~= nil and not heads[j] then
        fetch(j, 0, served[j] and math.min(wanted + 1, 33) or 1)
        if waiting[j] then
          heads_n, only = 1, j
          break
        end
      end
    end
  end
  local round = 0
  while free > 0 and most > 0 do
    -- Pick by value until the slots are taken or nothing may start: picks[i] are
    -- id, score, and true or those higher lanes over which the start goes, in turn;
    -- givers are the lanes of picks.
    local picks, givers, picked = {}, {}, 0
    if heads_n == 1 and served[only] then
      -- One lane has work: what it may start needs no comparing.
      local n = math.min(room_of(only), most)
      if n > 0 and asked[only] < n + 1 and #heads[only] == 2 * asked[only] then
        fetch(only, 0, n + 1)
      end
      local head, of_lane = heads[only], {}
      for j = 1, math.min(2 * n, #head), 2 do
        of_lane[picked * 3 + 1], of_lane[picked * 3 + 2] = head[j], head[j + 1]
        of_lane[picked * 3 + 3] = true
        picked = picked + 1
      end
      waiting[only] = head[2 * picked + 1] ~= nil
      if picked > 0 then
        picks[only], givers[1] = of_lane, only
        occupy(only, picked)
      end
    elseif heads_n > 1 then
      -- @include ranking
      while free > 0 and most > 0 do
        local best = take_best()
        if not best then break end
        if room_of(best) <= 0 then
          -- Only the best is asked for its limits.
          refuse(best)
        else
          local of_lane = picks[best]
          if not of_lane then
            of_lane = {}
            picks[best], givers[#givers + 1] = of_lane, best
          end
          local n, place, head = #of_lane, at[best], heads[best]
          of_lane[n + 1], of_lane[n + 2] = head[place], head[place + 1]
          picked = picked + 1
          -- A start keeps to the order of priorities if no strictly higher lane has
          -- work at this moment, whether or not this worker serves it.
          local over, priority = true, rule_by[best][1]
          for i = 1, priority < top and lanes_n or 0 do
            if waiting[i] and rule_by[i][1] > priority then
              if over == true then over = {} end
              if served[i] and not refused[i] and room_of(i) > 0 then over[#over + 1] = i end
            end
          end
          of_lane[n + 3] = over
          occupy(best, 1)
          place = place + 2
          at[best] = place
          local is_left = head[place] ~= nil
          if not is_left and #head < 2 * asked[best] then
            waiting[best] = false
          elseif free == 0 or most == 0 then
            -- All that is left to know is whether there is more.
            if not is_left then
              waiting[best] = redis.call("ZCARD", waiting_key(best)) > #of_lane / 3
            end
          else
            if not is_left then
              -- The chunk is used up: look behind what this round has picked, as far as
              -- the lane's share of the slots would go, or as many again.
              local taken, wish = #of_lane / 3, math.min(free, most, 128)
              fetch(best, taken, math.max(2, math.min(wish + 1, math.max(share, taken))))
            end
            if waiting[best] then rank(best) end
          end
        end
      end
    end
    if picked == 0 then break end
    local all_ids = {}
    for _, i in ipairs(givers) do
      local of_lane = picks[i]
      for j = 1, #of_lane, 3 do
        all_ids[#all_ids + 1] = of_lane[j]
      end
    end
    local records = redis.call("HMGET", jobs_key, unpack(all_ids))
    local of_all, upto = lane_n == 1 and int(now + ARGV[lane_at + 1]), 0
    for _, i in ipairs(givers) do
      local of_lane, from = picks[i], upto
      upto = from + #of_lane / 3
      local deadline, name = of_all or int(now + ARGV[lane_at + i]), lane_name(i)
      local lease_ids = {}
      for j = 1, upto - from do
        local id, score, record = of_lane[3 * j - 2], of_lane[3 * j - 1], records[from + j]
        local newline = record and string.find(record, "\n", 1, true)
        local head, task, ready = nil, nil, nil
        local tab = newline and string.find(record, "\t", 1, true)
        if tab and tab < newline then
          -- Of a job in a fair lane the place does not tell when it became ready. Most have
          -- no other options.
          task, ready = string.match(record, "^([^\t]+)\tg=[^\t\n]*\ty=(%d+)\n")
          if parking or not task then head = string.sub(record, 1, newline - 1) end
        elseif newline then
          task = string.sub(record, 1, newline - 1)
          head = task
        end
        if parking and head and parking.holds(i, id, head, score) then
          occupy(i, -1)
        elseif not newline or (not task and string.find(head, "\t[bnqxX]=")) then
          -- Not the first attempt, or options that a start looks at, or no body at all.
          local run, expires = slow().start(id, record, score, worker_id, name)
          if not newline then
            -- The body was evicted or deleted, or is no record: the letter says so.
            local reason = record and "!record unreadable" or "!body missing"
            occupy(i, -1)
            bump(i, run.task, "missing", 1)
            run.attempt = run.attempt - 1
            slow().finish(i, id, "dead", run, 0, reason, slow().dead_max_of(i))
            run = nil
          elseif expires and expires <= now then
            occupy(i, -1)
            if parking then parking.give_back(run.task) end
            run.attempt = 0
            slow().finish(i, id, "expired", run, slow().keep_of(record), "")
            run = nil
          end
          if run then
            run.started, run.fence = now_text, int(next_tick())
            local n = #run_args
            run_args[n + 1], run_args[n + 2] = id, slow().line_of(run)
            add_row(id, record, i, run.fence, run.attempt, run.ready, run.enqueued)
            lease_ids[#lease_ids + 1] = id
            call_line[#call_line + 1] = id .. ":" .. run.fence
            bump(i, run.task, "started", 1)
            if of_lane[3 * j] ~= true then
              bump(i, nil, "inverted", 1)
              for _, higher in ipairs(of_lane[3 * j]) do
                passed = passed or {}
                passed[higher] = true
              end
            end
            local until_us = overtaken_until and overtaken_until[i]
            if until_us then
              local since = tonumber(run.ready) + (slow().option_of(head, "b") or 0)
              if since <= until_us then bump(i, nil, "overtaken", 1) end
            end
          end
        else
          if not task then
            task, ready = string.sub(head, 1, tab - 1), string.match(head, "\ty=(%d+)")
          end
          local fence, n = int(next_tick()), #run_args
          local place = string.find(score, "e", 1, true) and int(tonumber(score)) or score
          ready = ready or place
          run_args[n + 1] = id
          run_args[n + 2] = fence .. " " .. worker_id .. " " .. name .. " 1 " .. place .. " "
            .. now_text .. " " .. ready .. " 0 0 " .. task
          add_row(id, record, i, fence, 1, ready, ready)
          lease_ids[#lease_ids + 1] = id
          call_line[#call_line + 1] = id .. ":" .. fence
          bump(i, task, "started", 1)
          if of_lane[3 * j] ~= true then
            bump(i, nil, "inverted", 1)
            for _, higher in ipairs(of_lane[3 * j]) do
              passed = passed or {}
              passed[higher] = true
            end
          end
          local until_us = overtaken_until and overtaken_until[i]
          if until_us and ready + 0 <= until_us then bump(i, nil, "overtaken", 1) end
        end
      end
      if #lease_ids > 0 then
        -- Backwards: a small sorted set looks for the place of each from its start.
        local leases = {}
        for j = #lease_ids, 1, -1 do
          local n = #leases
          leases[n + 1], leases[n + 2] = deadline, lease_ids[j]
        end
        redis.call("ZADD", leases_key(i), unpack(leases))
      end
      redis.call("ZREM", waiting_key(i), unpack(all_ids, from + 1, upto))
    end
    -- Expired and missing jobs gave their slots back: fill those, but not for ever.
    round = round + 1
    if free == 0 or most == 0 then break end
    if round == 8 then
      more = 1
      break
    end
    heads_n = 0
    for i = 1, lanes_n do
      if served[i] then fetch(i, 0, math.min(free, most, 32) + 1) end
      if waiting[i] then
        heads_n, only = heads_n + 1, i
      end
    end
  end
  if #run_args > 0 then redis.call("HSET", runs_key, unpack(run_args)) end
  if passed then
    local line = { int(version) }
    for i = 1, lanes_n do
      -- What was started in this very call lost nothing.
      local until_us = passed[i] and waiting[i] and now
        or overtaken_until and overtaken_until[i]
      if until_us then line[#line + 1] = i .. " " .. int(until_us) end
    end
    redis.call("HSET", state_key, "passed", table.concat(line, " "))
  end
end

-- Slots that are no use to a lane that is listened for: end the wait; tokens are
-- put after that, at the end, so that they go to others.
if is_listening then
  for i = 1, lanes_n do
    if listened[i] and not (served[i] and free > 0 and seats_of(i) > 0) then
      redis.call("DEL", doorbell_key)
      redis.call("LPUSH", doorbell_key, "1")
      redis.call("EXPIRE", doorbell_key, "60")
      break
    end
  end
end
local shut = limits and limits.shut()
if wanted > 0 then
  for i = 1, lanes_n do
    if waiting[i] and not (shut and shut[i]) then armed[i] = true end
  end
end
local next_open
if limits then
  next_open = limits.note(free, waiting, closed, shut, outcome_n > 0 or #call_line > 0, function(i)
    return served[i] and free > 0 and seats_of(i) > 0
  end)
end

-- The watch: one idle worker has promised to look at the next due instant. A
-- promise that lies ahead holds: what was leased since ends later, or is seen by
-- any worker's poll.
local wake_after = -1
if free > 0 then
  local soonest = next_open and math.min(next_open, next_due or next_open) or next_due
  local is_kept = watch_until
    and watch_until > now
    and (not soonest or watch_until <= soonest)
  if is_kept then
    if watcher == worker_id then wake_after = watch_until - now end
  else
    local first = soonest
    for i = 1, lanes_n do
      local head = redis.call("ZRANGE", leases_key(i), "0", "0", "WITHSCORES")
      if head[2] and (not first or tonumber(head[2]) < first) then first = tonumber(head[2]) end
    end
    if first then
      redis.call("HSET", state_key, "watcher", worker_id, "watch_until", int(first))
      wake_after = math.max(first - now, 0)
    elseif watcher == worker_id then
      redis.call("HDEL", state_key, "watcher", "watch_until")
    end
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
if outcome_n > 0 or #call_line > 0 then
  for _, id in ipairs(stale) do
    call_line[#call_line + 1] = id .. ":0"
  end
  redis.call("SET", call_key, int(seq) .. " " .. table.concat(call_line, " "), "EX", "60")
end
-- @include end_clock
-- @include end_ledger
-- @include end_counts
-- @include end_tokens
return { "ok", now_text, wake_after, more, stale, closed, unpack(rows) }
