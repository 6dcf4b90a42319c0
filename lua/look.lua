-- look: read all that is known of some jobs.
-- FLAGS   no-writes
-- KEYS    state jobs runs outcomes history progress tasks | waiting* scheduled* leases*
-- ARGV    most:int
-- EACH    job id
-- RETURNS {"ok", row...}; row: place lane score record run outcome history progress
--         task line; place: waiting, scheduled, running, ended or unknown; lane counted from 1, 0 if
--         ended; absent texts are empty. A scheduled job that is due, which no claim has
--         taken in yet, is told as it will be: waiting. With `most` above 0, for lists:
--         no payload, result or progress over so many bytes (the record is then its head
--         alone, a result is cut short), and four times that for an error (cut short) and
--         for the history (its last entry alone, cut short)
-- COST    O(jobs × lanes)
-- @include clock
-- @include head
start_clock(tonumber(redis.call("HGET", state_key, "clock") or "0"))
-- Return a text of a first line and a body, with a body of up to n bytes.
local function cut(text, n)
  local line = string.find(text, "\n", 1, true) or 0
  if most == 0 or #text - line <= n then return text end
  return string.sub(text, 1, line + n)
end
-- Return the last entry of a history that is too long; nothing of one that is odd.
local function last_of(history)
  local at = 1
  while true do
    local size, colon = string.match(history, "^(%d+)():", at)
    if not size then return "" end
    size = tonumber(size)
    if colon + size >= #history then
      local entry = cut(string.sub(history, colon + 1), 4 * most)
      return #entry .. ":" .. entry
    end
    at = colon + size + 1
  end
end
local reply = { "ok" }
for j = 1, job_n do
  local id = ARGV[job_at + (j - 1) * job_w + JOB_ID]
  local place, lane, score = "unknown", 0, "0"
  local record = redis.call("HGET", jobs_key, id)
  for i = 1, lanes_n do
    local found = redis.call("ZSCORE", waiting_key(i), id)
    if found then
      place, lane, score = "waiting", i, found
      break
    end
    found = redis.call("ZSCORE", scheduled_key(i), id)
    if found then
      place, lane, score = "scheduled", i, found
      if tonumber(found) <= now then
        place = "waiting"
        score = tonumber(found) - (record and option_of(head_of(record), "b") or 0)
      end
      break
    end
    found = redis.call("ZSCORE", leases_key(i), id)
    if found then
      place, lane, score = "running", i, found
      break
    end
  end
  local outcome = redis.call("HGET", outcomes_key, id) or ""
  if place == "unknown" and outcome ~= "" then place = "ended" end
  local history = redis.call("HGET", history_key, id) or ""
  local progress = redis.call("HGET", progress_key, id) or ""
  if most > 0 then
    if record and cut(record, most) ~= record then record = cut(record, 0) end
    outcome = cut(outcome, string.sub(outcome, 1, 5) == "dead " and 4 * most or most)
    if #history > 4 * most then history = last_of(history) end
    if #progress > most then progress = "" end
  end
  reply[#reply + 1] = {
    place,
    lane,
    string.format("%.0f", tonumber(score)),
    record or "",
    redis.call("HGET", runs_key, id) or "",
    outcome,
    history,
    progress,
    record and redis.call("HGET", tasks_key, task_of(head_of(record))) or "",
  }
end
return reply
