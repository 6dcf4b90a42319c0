-- cancel: end a job that has not started; ask for the end of one that runs.
-- FLAGS   allow-oom
-- KEYS    state jobs runs outcomes history progress ended watchers task_counts | waiting* scheduled* leases* counts* dead*
-- ARGV    id keep:int
-- RETURNS {"cancelled"} | {"requested", worker} | {"ended", state} | {"unknown"}
-- COST    O(lanes + log N)
-- KEEPS   after "cancelled" the job never starts; after "requested" its outcome is cancelled
--
-- The record of a cancelled job is kept as long as its result would be: for the
-- job's own result_ttl, or `keep` µs where its record names none.
-- @include clock
-- @include finish
-- @include lane_name
start_clock(tonumber(redis.call("HGET", state_key, "clock") or "0"))
local line = redis.call("HGET", runs_key, id)
local run = line and read_run(line)
local record = redis.call("HGET", jobs_key, id)
for i = 1, lanes_n do
  if run and redis.call("ZSCORE", leases_key(i), id) then
    if not run.is_cancelled then run.flags = run.flags + 1 end
    write_run(id, run)
    local prefix = string.sub(jobs_key, 1, -5)
    redis.call("PUBLISH", prefix .. "control:" .. run.worker, "cancel " .. id .. " " .. run.fence)
    return { "requested", run.worker }
  end
  local score = redis.call("ZSCORE", waiting_key(i), id) or redis.call("ZSCORE", scheduled_key(i), id)
  if score then
    local head = record and head_of(record) or "?"
    if not run then
      local enqueued = option_of(head, "q") or (tonumber(score) + (option_of(head, "b") or 0))
      run = { fence = "0", worker = "-", attempt = 0, losses = 0, flags = 0, started = "0", enqueued = int(enqueued) }
      run.task = task_of(head)
      run.lane = lane_name(i)
    end
    run.score = int(tonumber(score))
    redis.call("ZREM", waiting_key(i), id)
    redis.call("ZREM", scheduled_key(i), id)
    finish(i, id, "cancelled", run, option_of(head, "r") or keep, "", -1)
    -- @include end_ledger
    -- @include end_counts
    return { "cancelled" }
  end
end
local outcome = redis.call("HGET", outcomes_key, id)
if outcome then return { "ended", string.match(outcome, "^%S+") } end
return { "unknown" }
