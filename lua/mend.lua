-- mend: judge jobs again, and put right what is wrong with them where nothing is lost by it.
-- FLAGS   allow-oom
-- KEYS    state jobs runs outcomes history progress ended watchers tasks task_counts
-- KEYS    waiting* scheduled* leases* dead* counts* wake* shares*
-- ARGV    version:int
-- EACH    job id
-- RETURNS {"ok", {kind id lane did ...}, {kind id lane detail ...}}: what was put right, and
--         what was not
-- ERRORS  config: the lanes changed, ask for them and call again
-- COST    O(jobs × lanes × log N), at most 50 jobs
-- KEEPS   counts tell events: none is changed to make a sum come out. A job that was counted
--         as enqueued and is in no place is put back or counted as dead, so that it is told;
--         one that was never counted is counted then
--
-- What a job is, is told by its parts in this order: an outcome whose place there is; a lease
-- under its fence; a run line; the balance of a lane, which lacks what was lost of it.
-- @include clock
-- @include bump
-- @include arm
-- @include ledger
local next_due, watch_until
-- @include judge
-- @include recover
-- @include fair
-- @include erase
local hints = redis.call("HMGET", state_key, "clock", "version", "next_due", "watch_until", "config")
if tonumber(hints[2] or "0") ~= version then return { "config" } end
start_clock(tonumber(hints[1] or "0"))
next_due, watch_until = tonumber(hints[3] or nil), tonumber(hints[4] or nil)
local limits = hints[5] and cjson.decode(hints[5]).lanes or {}
local function letters_of(i)
  return limits[i] and limits[i][7] or -1
end
local function index_of(name)
  for i = 1, lanes_n do
    if lane_name(i) == name then return i end
  end
  return nil
end
-- left_of: the first of some counts of a lane, less the others, as they will be written.
local function left_of(i, events)
  local counts = redis.call("HMGET", counts_key(i), unpack(events))
  local left = 0
  for j, event in ipairs(events) do
    local n = tonumber(counts[j] or "0") + (lane_events[i] and lane_events[i][event] or 0)
    left = j == 1 and n or left - n
  end
  return left
end
-- lacking: how many jobs a lane should have by its counts and has not; below 0, has too many.
local function lacking(i)
  local open = left_of(i, { "enqueued", "succeeded", "dead", "cancelled", "expired", "purged" })
  local there = redis.call("ZCARD", waiting_key(i)) + redis.call("ZCARD", scheduled_key(i))
  return open - there - redis.call("ZCARD", leases_key(i))
end
local function lacking_attempts(i)
  local ends = { "started", "succeeded", "failed_attempts", "lost_leases", "handed_back", "stopped" }
  return left_of(i, ends) - redis.call("ZCARD", leases_key(i))
end
local function flags_of(f, flags)
  flags = flags % 2
  if f.has_progress then flags = flags + 2 end
  if f.has_history then flags = flags + 4 end
  return flags
end
local function leave(at, f)
  local key = at.key
  redis.call("ZREM", key, f.id)
end
local function task_told(f)
  return f.head and task_of(f.head) or f.run and f.run.task or "?"
end
-- run_for: its run line as that of a job of lane i that does not run, or a new one.
local function run_for(f, i, score)
  local run = f.run or { attempt = 0, enqueued = int(score), losses = 0, flags = 0 }
  run.fence, run.worker, run.lane = "0", run.worker or "-", lane_name(i)
  run.started, run.score = run.started or "0", run.score or int(score)
  run.flags, run.task = flags_of(f, run.flags), run.task or task_told(f)
  return run
end
-- end_attempt: count as lost the attempt that it was on, if its lane lacks one. Without a run
-- line nothing else tells that it ran.
local function end_attempt(f, i)
  local may_have_run = not f.run or f.run.fence ~= "0"
  if may_have_run and lacking_attempts(i) > 0 then
    bump(i, task_told(f), "lost_leases", 1)
    return true
  end
end
local function bring_back(f, i)
  -- A lease that no claim made was not counted as a start either.
  local is_counted = lacking_attempts(i) >= 0
  recover(i, f.id, letters_of(i))
  if not is_counted then bump(i, task_told(f), "lost_leases", -1) end
  return "ended its attempt as lost"
end
local function bury(f, i, reason)
  local run = run_for(f, i, tick)
  finish(i, f.id, "dead", run, 0, reason, letters_of(i))
  return "made it a dead letter: " .. string.sub(reason, 2)
end
local function true_place(f)
  local best, best_rank
  for _, at in ipairs(f.places) do
    local rank = 6
    if at.word == "dead" or at.word == "ended" then
      local is_told = f.is_unread or f.is_readable and (f.end_state == "dead") == (at.word == "dead")
      if f.has_outcome and is_told then rank = 1 end
    elseif f.run and f.run.lane == lane_name(at.i) then
      if (at.word == "leases") == (f.run.fence ~= "0") then rank = 2 end
      if rank == 6 then rank = at.word == "leases" and 5 or 3 end
    elseif at.word == "leases" then
      rank = 5
    else
      rank = lacking(at.i) < 0 and 5 or 4
    end
    if not best or rank < best_rank then
      best, best_rank = at, rank
    end
  end
  return best
end
local function from_two_places(f)
  local keep, left = true_place(f), {}
  for _, at in ipairs(f.places) do
    if at ~= keep then
      leave(at, f)
      left[#left + 1] = at.i == 0 and at.word or at.word .. " of " .. lane_name(at.i)
    end
  end
  return "took it out of " .. table.concat(left, ", ") .. "; it is " .. keep.word
end
-- to_its_end: put back what has an outcome; nothing where its lane is not known.
local function to_its_end(f)
  if f.end_state ~= "dead" then
    redis.call("ZADD", ended_key, int(now + 300000000), f.id)
    return "keeps its outcome, " .. f.end_state .. ", for 300 s"
  end
  local i = index_of(f.end_lane)
  if not i then return nil end
  redis.call("ZADD", dead_key(i), f.end_at, f.id)
  return "put it back among the dead letters of " .. f.end_lane
end
local function missed_in(i)
  return i and lacking(i) > 0 and i or nil
end
local function first_missed()
  for i = 1, lanes_n do
    if lacking(i) > 0 then return i end
  end
  return nil
end
-- home_of: the lane of a job that is in no place, and whether that lane lacks it.
local function home_of(f)
  local named = f.run and index_of(f.run.lane)
  if named then return named, lacking(named) > 0 end
  local line = redis.call("HGET", tasks_key, task_told(f))
  named = line and index_of(string.match(line, "^%S+")) or nil
  local missed = missed_in(named) or first_missed()
  return missed or named, missed ~= nil
end
local function drop(f, what)
  erase({ f.id })
  return "dropped " .. what .. ": no job is left that it is of"
end
local function from_nowhere(f)
  if f.is_unread or f.is_readable then return to_its_end(f) end
  if not f.record and not f.run then return drop(f, "its traces") end
  local i, is_missed = home_of(f)
  if not f.record and not (i and is_missed) then return drop(f, "its run line") end
  local is_known = i ~= nil
  i = i or lanes_n
  if i == 0 then return nil end
  if f.has_outcome then redis.call("HDEL", outcomes_key, f.id) end
  if not is_missed then bump(i, task_told(f), "enqueued", 1) end
  if not f.head then
    end_attempt(f, i)
    bump(i, task_told(f), "missing", 1)
    return bury(f, i, f.record and "!record unreadable" or "!body missing")
  end
  if not is_known then return bury(f, i, "!lane lost") end
  if not f.run and option_of(f.head, "q") then
    -- It was delayed, and until when is lost with its place: a person has to decide.
    return bury(f, i, "!due time lost")
  end
  local run = f.run
  if run and run.fence ~= "0" and lacking_attempts(i) > 0 then
    return bring_back(f, i) .. "; it was in no place"
  end
  end_attempt(f, i)
  local boost = option_of(f.head, "b") or 0
  local score, weights = next_tick() - boost, fair_rule(i)
  if run or f.is_returned then
    back_to_front(i, f.id, run_for(f, i, score))
  elseif weights then
    redis.call("HSET", jobs_key, f.id, with_ready(f.record, tick))
    redis.call("ZADD", waiting_key(i), int(fair_place(i, weights, f.record, boost)), f.id)
    arm(i)
  else
    redis.call("ZADD", waiting_key(i), int(place(i, score)), f.id)
    arm(i)
  end
  return "put it back into lane " .. lane_name(i)
end
local function from_its_end(f, at)
  local i = at.i
  if f.line then
    redis.call("HDEL", runs_key, f.id)
    return "dropped its run line"
  end
  if f.is_unread then return nil end
  if f.is_readable then
    local is_dead = f.end_state == "dead"
    if is_dead == (at.word == "dead") and (not is_dead or f.end_lane == lane_name(i)) then return nil end
    local did = to_its_end(f)
    if did then leave(at, f) end
    return did
  end
  if at.word == "ended" then
    erase({ f.id })
    redis.call("ZREM", ended_key, f.id)
    return "dropped its record: how it ended is lost"
  end
  local words = { "dead", lane_name(i), "0", "0", int(at.score), "0", int(at.score), "- 0", task_told(f) }
  redis.call("HSET", outcomes_key, f.id, table.concat(words, " ") .. "\n!error lost")
  return "wrote a letter: its error is lost"
end
local function from_leases(f, at, fault)
  local i, run = at.i, f.run
  if not fault and (f.head or at.score > now) then return nil end
  -- Is it the lease of this lane? One that has a job too many, and one that lacks one, say it.
  local other = lacking(i) < 0 and (run and missed_in(index_of(run.lane)) or first_missed())
  if other then
    if run then
      run.lane = lane_name(other)
      write_run(f.id, run)
    end
    redis.call("ZADD", leases_key(other), int(at.score), f.id)
    leave(at, f)
    return "moved its lease to lane " .. lane_name(other)
  end
  if not f.head or not run or run.fence == "0" or run.worker == "-" then return bring_back(f, i) end
  run.lane = lane_name(i)
  run.flags = flags_of(f, run.flags)
  write_run(f.id, run)
  return "mended its run line"
end
local function from_waiting(f, at, fault)
  local i = at.i
  if not f.head then
    end_attempt(f, i)
    bump(i, task_told(f), "missing", 1)
    local did = bury(f, i, f.record and "!record unreadable" or "!body missing")
    leave(at, f)
    return did
  end
  if fault then
    local was_lost = end_attempt(f, i)
    write_run(f.id, run_for(f, i, at.score))
    mark_returned(f.id)
    return was_lost and "mended its run line; ended its attempt as lost" or "mended its run line"
  end
  local key, score = at.key, nil
  if at.word == "scheduled" or option_of(f.head, "y") then
    -- A time ahead, or a place in a fair lane, which is none.
    score = free_from(key, at.score)
  else
    score = place(i, at.score > now and next_tick() or at.score)
  end
  redis.call("ZADD", key, int(score), f.id)
  return "gave it a score of its own"
end
local function put_right(f)
  if #f.places == 0 then return from_nowhere(f) end
  if #f.places > 1 then return from_two_places(f) end
  local at = f.places[1]
  if at.word == "dead" or at.word == "ended" then return from_its_end(f, at) end
  if f.has_outcome then
    -- Which is right, the outcome or the place? If the lane has a job too many, it has ended.
    if lacking(at.i) < 0 and (f.is_unread or f.is_readable) then
      leave(at, f)
      redis.call("HDEL", runs_key, f.id)
      return "took it out of " .. at.word .. ": it has ended"
    end
    redis.call("HDEL", outcomes_key, f.id)
    return "dropped the outcome of an earlier life"
  end
  local fault = fault_of_run(f, at.word, at.i)
  if at.word == "leases" then return from_leases(f, at, fault) end
  return from_waiting(f, at, fault)
end
local done, left = {}, {}
for j = 1, job_n do
  local id = ARGV[job_at + j]
  -- A job may have several things wrong with it: one is put right at a time, and judged anew.
  for round = 1, 6 do
    local ended_n = #kept + #gone
    sets = nil -- what was mended may have filled a set that was empty
    local f = gather({ id }, { redis.call("HGET", jobs_key, id) })[1]
    local found = {}
    judge(f, function(kind, i, detail)
      found[#found + 1] = { kind, id, i > 0 and lane_name(i) or "", detail }
    end)
    if #found == 0 then break end
    local did = round < 6 and put_right(f)
    local rows = did and { { found[1][1], id, found[1][3], did } } or found
    local to = did and done or left
    for _, row in ipairs(rows) do
      for _, text in ipairs(row) do
        to[#to + 1] = text
      end
    end
    -- What has ended is written at the end of the script, and not to be judged before.
    if not did or #kept + #gone > ended_n then break end
  end
end
-- @include end_clock
-- @include end_ledger
-- @include end_counts
-- @include end_tokens
return { "ok", done, left }
