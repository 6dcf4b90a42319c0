-- books: read every count and every size of a namespace, at one instant.
-- FLAGS   no-writes
-- KEYS    state lanes overrides jobs runs outcomes history progress ended watchers workers beats
-- KEYS    fleet task_counts | waiting* scheduled* leases* dead* counts* wake* rates*
-- ARGV    version:int
-- RETURNS {"ok", now, next_due, watched, watched_until, {unknown override...}, {size...},
--         {task field n ...}, {fleet field value ...}, row...}
--         next_due, watched: the hints, "" for none; watched_until: the last watcher's end;
--         sizes: in the order of KEYS from jobs to beats; row: waiting scheduled running
--         dead first_due wake rates {event n ...}
-- ERRORS  config: the lanes changed, ask for them and call again
-- COST    O(lanes × events + tasks × events + workers)
-- @include clock
start_clock(tonumber(redis.call("HGET", state_key, "clock") or "0"))
local hints = redis.call("HMGET", state_key, "version", "next_due", "watched")
if tonumber(hints[1] or "0") ~= version then return { "config" } end
local unknown = {}
local set = redis.call("HGETALL", overrides_key)
for j = 1, #set, 2 do
  if redis.call("HEXISTS", lanes_key, set[j]) == 0 then unknown[#unknown + 1] = set[j] end
end
local newest = redis.call("ZREVRANGE", watchers_key, 0, 0, "WITHSCORES")
local reply = {
  "ok",
  int(now),
  hints[2] or "",
  hints[3] or "",
  newest[2] and int(tonumber(newest[2])) or "0",
  unknown,
  {
    redis.call("HLEN", jobs_key),
    redis.call("HLEN", runs_key),
    redis.call("HLEN", outcomes_key),
    redis.call("HLEN", history_key),
    redis.call("HLEN", progress_key),
    redis.call("ZCARD", ended_key),
    redis.call("ZCARD", watchers_key),
    redis.call("HLEN", workers_key),
    redis.call("ZCARD", beats_key),
  },
  redis.call("HGETALL", task_counts_key),
  redis.call("HGETALL", fleet_key),
}
for i = 1, lanes_n do
  local first = redis.call("ZRANGE", scheduled_key(i), 0, 0, "WITHSCORES")
  reply[#reply + 1] = {
    redis.call("ZCARD", waiting_key(i)),
    redis.call("ZCARD", scheduled_key(i)),
    redis.call("ZCARD", leases_key(i)),
    redis.call("ZCARD", dead_key(i)),
    first[2] and int(tonumber(first[2])) or "",
    redis.call("LLEN", wake_key(i)),
    redis.call("LLEN", rates_key(i)),
    redis.call("HGETALL", counts_key(i)),
  }
end
return reply
