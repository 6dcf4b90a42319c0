-- leave: take a worker that stops off the list.
-- FLAGS   allow-oom
-- KEYS    state workers beats fleet call doorbell
-- ARGV    worker_id
-- RETURNS {"ok"}
-- COST    O(log workers)
-- @include unload
unload(worker_id)
redis.call("HDEL", workers_key, worker_id)
redis.call("ZREM", beats_key, worker_id)
redis.call("DEL", call_key, doorbell_key)
if redis.call("HGET", state_key, "watcher") == worker_id then
  redis.call("HDEL", state_key, "watcher", "watch_until")
end
return { "ok" }
