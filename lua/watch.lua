-- watch: read how a job ended, or ask to be told when it does.
-- FLAGS   allow-oom
-- KEYS    state jobs outcomes watchers
-- ARGV    id ttl:int
-- RETURNS {"ended", outcome} | {"open"} | {"unknown"}
-- COST    O(log watchers)
-- KEEPS   after "open" the end is published on the job's channel, for ttl µs at least
-- @include clock
local outcome = redis.call("HGET", outcomes_key, id)
if outcome then return { "ended", outcome } end
if redis.call("HEXISTS", jobs_key, id) == 0 then return { "unknown" } end
start_clock(tonumber(redis.call("HGET", state_key, "clock") or "0"))
redis.call("ZADD", watchers_key, "GT", int(now + ttl), id)
local last = tonumber(redis.call("HGET", state_key, "watched") or "0")
if now + ttl > last then redis.call("HSET", state_key, "watched", int(now + ttl)) end
return { "open" }
