-- progress: note how far a running job is.
-- KEYS    runs progress
-- ARGV    id fence value
-- RETURNS {"ok"}
-- ERRORS  lost: another attempt has the job, or none
-- COST    O(1)
-- @include run
local line = redis.call("HGET", runs_key, id)
local run = line and read_run(line)
if not run or run.fence ~= fence or fence == "0" then return { "lost" } end
if run.flags % 4 < 2 then
  run.flags = run.flags + 2
  write_run(id, run)
end
redis.call("HSET", progress_key, id, value)
return { "ok" }
