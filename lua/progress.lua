-- progress: note how far a running job is.
-- KEYS    runs progress
-- ARGV    id fence value
-- RETURNS {"ok"}
-- ERRORS  lost: another attempt has the job, or none
-- COST    O(1)
-- @include run
local line = redis.call("HGET", runs_key, id)
if not line or read_run(line).fence ~= fence then return { "lost" } end
redis.call("HSET", progress_key, id, value)
return { "ok" }
