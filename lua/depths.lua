-- depths: read the present of every lane and its counts.
-- FLAGS   no-writes
-- KEYS    state jobs | waiting* scheduled* leases* dead* counts* rates*
-- ARGV    window:int
-- RETURNS {"ok", now, row...}; row: waiting scheduled running dead head_ready {counts} then line
--         head_ready: when the first job that waits became ready, "" where none does
--         then: "" or the ring's snapshot from about `window` µs ago (time enqueued started succeeded dead inverted
--         overtaken lost_leases)
--         a scheduled job that is due counts as waiting, as a claim would have it
-- COST    O(lanes × events)
-- @include clock
-- @include ready
start_clock(tonumber(redis.call("HGET", state_key, "clock") or "0"))
local reply = { "ok", int(now) }
for i = 1, lanes_n do
  local head = redis.call("ZRANGE", waiting_key(i), 0, 0, "WITHSCORES")
  local due = redis.call("ZCOUNT", scheduled_key(i), "-inf", int(now))
  local since = head[2] and ready_of(head[1], tonumber(head[2]))
  if due > 0 then
    local first = redis.call("ZRANGE", scheduled_key(i), 0, 0, "WITHSCORES")
    if not since or tonumber(first[2]) < since then since = tonumber(first[2]) end
  end
  -- Snapshots are 5 s apart or more: look at those that the window can hold.
  local ring = redis.call("LRANGE", rates_key(i), -1 - math.ceil(window / 5000000), -1)
  local past = ""
  for _, line in ipairs(ring) do
    if tonumber(string.match(line, "^%d+") or "0") >= now - window then
      past = line
      break
    end
  end
  reply[#reply + 1] = {
    redis.call("ZCARD", waiting_key(i)) + due,
    redis.call("ZCARD", scheduled_key(i)) - due,
    redis.call("ZCARD", leases_key(i)),
    redis.call("ZCARD", dead_key(i)),
    since and int(since) or "",
    redis.call("HGETALL", counts_key(i)),
    past,
  }
end
return reply
