-- register: list a worker as alive, or renew that it is.
-- FLAGS   allow-oom
-- KEYS    state workers beats
-- ARGV    worker_id info ttl:int
-- RETURNS {"ok", now}
-- COST    O(log workers)
-- @include clock
start_clock(tonumber(redis.call("HGET", state_key, "clock") or "0"))
redis.call("HSET", workers_key, worker_id, info)
redis.call("ZADD", beats_key, int(now + ttl), worker_id)
return { "ok", int(now) }
