-- @include text
-- @include head
-- @include read_run
-- @include lane_name
-- gather: all that the namespace has of some jobs, at one instant. `records` are
-- their records, false where there is none. The bodies of outcomes are read, as
-- they stand behind the line that is looked at: one over 64 KB is left out (its
-- line is then not judged) once 2 MiB were read in this call.
local read_bytes = 0
-- Sets that are empty, as most are, are found once and not asked for each job.
local sets, has_runs, has_outcomes, has_history, has_progress
local function find_sets()
  sets = {}
  local function add(word, i, key)
    if redis.call("EXISTS", key) == 1 then sets[#sets + 1] = { word, i, key } end
  end
  for i = 1, lanes_n do
    add("waiting", i, waiting_key(i))
    add("scheduled", i, scheduled_key(i))
    add("leases", i, leases_key(i))
    add("dead", i, dead_key(i))
  end
  add("ended", 0, ended_key)
  has_runs = redis.call("EXISTS", runs_key) == 1
  has_outcomes = redis.call("EXISTS", outcomes_key) == 1
  has_history = redis.call("EXISTS", history_key) == 1
  has_progress = redis.call("EXISTS", progress_key) == 1
end
local function read_outcome(f, size)
  f.has_outcome = true
  if size > 65536 and read_bytes >= 2097152 then
    f.is_unread = true
    return
  end
  read_bytes = read_bytes + size
  local text = redis.call("HGET", outcomes_key, f.id)
  local state, lane, ended_at =
    string.match(text, "^(%a+) (%S+) %d+ %d+ %d+ %d+ (%d+) %S+ %d+ [^\n]*\n")
  f.end_state, f.end_lane, f.end_at = state, lane, ended_at
  f.is_readable = state == "succeeded" or state == "dead" or state == "cancelled" or state == "expired"
  f.has_no_body_by_right = string.find(text, "\n!body missing", 1, true) ~= nil
end
local function gather(ids, records)
  if not sets then find_sets() end
  local places, facts = {}, {}
  for n = 1, #ids do
    places[n] = {}
  end
  for _, set in ipairs(sets) do
    local key = set[3]
    local scores = redis.call("ZMSCORE", key, unpack(ids))
    for n = 1, #ids do
      local score = scores[n]
      if score then
        local of_job = places[n]
        of_job[#of_job + 1] = { word = set[1], i = set[2], key = key, score = tonumber(score) }
      end
    end
  end
  local lines = has_runs and redis.call("HMGET", runs_key, unpack(ids))
  for n, id in ipairs(ids) do
    local record, line = records[n], lines and lines[n]
    local newline = record and string.find(record, "\n", 1, true)
    local head = newline and string.sub(record, 1, newline - 1)
    local f = {
      id = id,
      record = record,
      head = head,
      is_returned = head and string.find(head, "\tn=", 1, true) ~= nil,
      places = places[n],
      line = line,
      run = line and read_run(line),
      has_history = has_history and redis.call("HEXISTS", history_key, id) == 1,
      has_progress = has_progress and redis.call("HEXISTS", progress_key, id) == 1,
      has_outcome = false,
    }
    local size = has_outcomes and redis.call("HSTRLEN", outcomes_key, id) or 0
    if size > 0 then read_outcome(f, size) end
    facts[n] = f
  end
  return facts
end
-- fault_of_run: what is wrong with the run line of a job that is open, nothing if it is well.
local function fault_of_run(f, word, i)
  local run = f.run
  if f.line and not run then return "its run line cannot be read" end
  if word == "leases" then
    if not run then return "a lease without a run line" end
    if run.fence == "0" or run.worker == "-" then return "a lease that no worker holds" end
  elseif run and run.fence ~= "0" then
    return word .. ", and its run line has the fence " .. run.fence .. " of " .. run.worker
  elseif run and f.head and not f.is_returned then
    return "its record does not say that it has a run line"
  elseif not run and f.is_returned then
    return "its record says that it has a run line, and it has none"
  end
  if run and run.lane ~= lane_name(i) then return "its run line says lane " .. run.lane end
  local flags = run and run.flags or 0
  if f.has_history and flags < 4 then return "its run line does not tell of its history" end
  if f.has_progress and flags % 4 < 2 then return "its run line does not tell of its progress" end
  return nil
end
local function judge_open(f, at, say)
  local word, i, key = at.word, at.i, at.key
  if f.has_outcome then say("outcome", i, word .. ", and it has an outcome") end
  if not f.head then
    say("no body", i, f.record and word .. ", and its record cannot be read" or word .. " without a record")
  end
  local fault = fault_of_run(f, word, i)
  if fault then say("run line", i, fault) end
  if word == "leases" then return end
  local score = int(at.score)
  if redis.call("ZCOUNT", key, score, score) > 1 then
    say("order", i, word .. " with the score " .. int(at.score) .. ", which another has too")
  end
  -- A place in a fair lane is no instant.
  local is_instant = not (f.head and string.find(f.head, "\ty=", 1, true))
  if word == "waiting" and at.score > now and is_instant then
    say("order", i, "it waits from " .. int(at.score) .. ", which is after now, " .. int(now))
  end
end
local function judge_ended(f, at, say)
  local word, i = at.word, at.i
  if not f.has_outcome then
    say("outcome", i, word .. ", and it has no outcome")
  elseif not f.is_unread then
    if not f.is_readable then
      say("outcome", i, word .. ", and its outcome cannot be read")
    elseif (f.end_state == "dead") ~= (word == "dead") then
      say("outcome", i, "it is among the " .. word .. ", and its outcome says " .. f.end_state)
    elseif word == "dead" and f.end_lane ~= lane_name(i) then
      say("outcome", i, "its outcome says lane " .. f.end_lane)
    end
  end
  if f.line then say("orphan", i, "a run line, while it is " .. word) end
  -- What is kept of other ended jobs is their outcome; of a letter also what it takes to retry it.
  if word == "dead" and not f.record and not f.has_no_body_by_right and not f.is_unread then
    say("no body", i, "a dead letter without a record")
  end
end
-- judge: say what is wrong with a job: kind, lane (0 for none) and detail, in words.
local function judge(f, say)
  local places = f.places
  if #places == 1 then
    local at = places[1]
    if at.word == "dead" or at.word == "ended" then
      judge_ended(f, at, say)
    else
      judge_open(f, at, say)
    end
  elseif #places > 1 then
    local names = {}
    for n, at in ipairs(places) do
      names[n] = at.i == 0 and at.word or at.word .. " of " .. lane_name(at.i)
    end
    say("two places", places[1].i, table.concat(names, " and "))
  else
    local parts = {}
    if f.record then parts[#parts + 1] = "a record" end
    if f.line then parts[#parts + 1] = "a run line" end
    if f.has_outcome then parts[#parts + 1] = "an outcome" end
    if f.has_history then parts[#parts + 1] = "a history" end
    if f.has_progress then parts[#parts + 1] = "a progress" end
    if #parts > 0 then say("orphan", 0, table.concat(parts, ", ") .. " of a job that is in no place") end
  end
end
