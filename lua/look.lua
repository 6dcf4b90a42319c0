-- look: read all that is known of some jobs.
-- FLAGS   no-writes
-- KEYS    state jobs runs outcomes history progress | waiting* scheduled* leases*
-- EACH    job id
-- RETURNS {"ok", row...}; row: place lane score record run outcome history progress
--         place: waiting, scheduled, running, ended or unknown; lane counted from 1, 0 if
--         ended; absent texts are empty. A scheduled job that is due, which no claim has
--         taken in yet, is told as it will be: waiting
-- COST    O(jobs × lanes)
-- @include clock
-- @include head
start_clock(tonumber(redis.call("HGET", state_key, "clock") or "0"))
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
  reply[#reply + 1] = {
    place,
    lane,
    string.format("%.0f", tonumber(score)),
    record or "",
    redis.call("HGET", runs_key, id) or "",
    outcome,
    redis.call("HGET", history_key, id) or "",
    redis.call("HGET", progress_key, id) or "",
  }
end
return reply
