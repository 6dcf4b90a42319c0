-- check: judge a slice of what a namespace has, at one instant.
-- FLAGS   no-writes
-- KEYS    state jobs runs outcomes history progress ended watchers workers beats
-- KEYS    waiting* scheduled* leases* dead*
-- ARGV    version:int source:int cursor most:int
-- EACH    wanted task
-- RETURNS {"ok", source, cursor, seen, {kind id lane detail ...}, {task state n ...},
--         {task state id ...}}
--         source, cursor: where to go on; source 0 when the walk is over. seen: entries
--         looked at. What is broken. How many open jobs of each task there were, and
--         the ids of those of the tasks wanted
-- ERRORS  config: the lanes changed, ask for them and call again
-- COST    O(most × (lanes + log N)), stops sooner after 1 MiB of bodies
--
-- The walk goes through every hash and sorted set that has entries of jobs, by cursor:
-- what is there from its beginning to its end is seen. All that there is of a job is
-- compared in one call, so a job that moves meanwhile is never seen in two places.
-- Sources: 1 jobs, 2 runs, 3 outcomes, 4 history, 5 progress, 6 workers, 7 ended,
-- 8 beats, 9 watchers, then four sorted sets of each lane.
-- A job with a record is judged where its record is found, all others elsewhere.
-- @include clock
-- @include judge
-- @include step
start_clock(tonumber(redis.call("HGET", state_key, "clock") or "0"))
if tonumber(redis.call("HGET", state_key, "version") or "0") ~= version then return { "config" } end
local problems, tallies, names, mine = {}, {}, {}, {}
local wanted = {}
for j = 1, wanted_n do
  wanted[ARGV[wanted_at + j]] = true
end
local function tally(task, word, id)
  local of_task = tallies[task]
  if not of_task then
    of_task = {}
    tallies[task] = of_task
    names[#names + 1] = task
  end
  of_task[word] = (of_task[word] or 0) + 1
  if wanted[task] then
    local n = #mine
    mine[n + 1], mine[n + 2], mine[n + 3] = task, word, id
  end
end
local function task_told(f)
  return f.head and task_of(f.head) or f.run and f.run.task or "?"
end
local about
local function say(word, i, detail)
  local n = #problems
  problems[n + 1], problems[n + 2] = word, about
  problems[n + 3], problems[n + 4] = i > 0 and lane_name(i) or "", detail
end
local function judge_all(ids, records)
  if #ids == 0 then return end
  for _, f in ipairs(gather(ids, records)) do
    -- Of a job without a record, the hashes judge it only where no place has it.
    local is_here = source == 1 or source == 7 or source > 9
    about = f.id
    if is_here or #f.places == 0 then judge(f, say) end
    if source == 1 then
      for _, at in ipairs(f.places) do
        if at.word ~= "dead" and at.word ~= "ended" then tally(task_told(f), at.word, f.id) end
      end
    elseif source > 9 and (source - 10) % 4 < 3 then
      local words = { "waiting", "scheduled", "leases" }
      tally(task_told(f), words[(source - 10) % 4 + 1], f.id)
    end
  end
end
local function judge_worker(id)
  about = id
  local is_listed = redis.call("HEXISTS", workers_key, id) == 1
  local beats_at = redis.call("ZSCORE", beats_key, id)
  if is_listed and not beats_at then say("worker", 0, "listed, and without a heartbeat") end
  if beats_at and not is_listed then say("worker", 0, "a heartbeat of one that is not listed") end
end
local function judge_watcher(id, upto)
  about = id
  if tonumber(upto) <= now then return end
  if redis.call("HEXISTS", outcomes_key, id) == 1 then
    say("watcher", 0, "somebody waits for its end, which has come")
  elseif redis.call("HEXISTS", jobs_key, id) == 0 then
    say("watcher", 0, "somebody waits for the end of a job that is not there")
  end
end
local lane_words = 4
local last = 9 + lane_words * lanes_n
local function key_of(n)
  local first = { jobs_key, runs_key, outcomes_key, history_key, progress_key, workers_key }
  if n < 7 then return first[n], "HSCAN" end
  local next_ones = { ended_key, beats_key, watchers_key }
  if n < 10 then return next_ones[n - 6], "ZSCAN" end
  local i, word = math.floor((n - 10) / lane_words) + 1, (n - 10) % lane_words
  if word == 0 then return waiting_key(i), "ZSCAN" end
  if word == 1 then return scheduled_key(i), "ZSCAN" end
  return word == 2 and leases_key(i) or dead_key(i), "ZSCAN"
end
local seen, done, bytes, asked = 0, 0, 0, 0
while source > 0 and asked < most and bytes + read_bytes <= 1048576 do
  local key, scan = key_of(source)
  local is_hash = scan == "HSCAN"
  local step = is_hash and step_of(most - asked, done, bytes + read_bytes) or math.min(most - asked, 250)
  local page = redis.call(scan, key, cursor, "COUNT", int(step))
  cursor = page[1]
  local entries = page[2]
  local ids, records, is_new = {}, {}, {}
  for j = 1, #entries, 2 do
    local id = entries[j]
    if is_hash then bytes = bytes + #entries[j + 1] end
    if not is_new[id] then
      is_new[id] = true
      if source == 6 or source == 8 then
        judge_worker(id)
      elseif source == 9 then
        judge_watcher(id, entries[j + 1])
      elseif source == 1 then
        ids[#ids + 1], records[#records + 1] = id, entries[j + 1]
      elseif redis.call("HEXISTS", jobs_key, id) == 0 then
        ids[#ids + 1], records[#records + 1] = id, false
      end
      if #ids == 500 then
        judge_all(ids, records)
        ids, records = {}, {}
      end
    end
  end
  judge_all(ids, records)
  seen = seen + #entries / 2
  if is_hash then done = done + #entries / 2 end
  -- An empty place costs a call too.
  asked = asked + math.max(#entries / 2, 4)
  if cursor == "0" then source = source < last and source + 1 or 0 end
end
local open = {}
for _, task in ipairs(names) do
  for word, n in pairs(tallies[task]) do
    local k = #open
    open[k + 1], open[k + 2], open[k + 3] = task, word, n
  end
end
return { "ok", source, cursor, seen, problems, open, mine }
