-- size: take or keep the duty of sizing the automatic reserves, and read what that needs.
-- FLAGS   allow-oom
-- KEYS    state sizing fleet | counts* fine* before*
-- ARGV    worker_id ttl:int
-- EACH    lane name
-- RETURNS {"ok", now, term, row...}; row: decision enqueued slots {field n...} {field n...}
--         decision: what is in the sizing hash, "" without; slots: of the live workers that
--         serve the lane, 0 where nobody counts them; histograms of this ten seconds and
--         of those before
--         {"other", now, until}: another worker has the duty until then
-- COST    O(lanes × buckets)
-- KEEPS   one worker has the duty at a time; terms rise, and a decision of an old one is refused
-- @include clock
start_clock(tonumber(redis.call("HGET", state_key, "clock") or "0"))
local holder, till, term =
  string.match(redis.call("HGET", state_key, "sizer") or "", "^(%S+) (%d+) (%d+)$")
if holder and holder ~= worker_id and tonumber(till) > now then
  return { "other", int(now), till }
end
term = tonumber(term or "0")
if holder ~= worker_id or tonumber(till) <= now then term = term + 1 end
redis.call("HSET", state_key, "sizer", worker_id .. " " .. int(now + ttl) .. " " .. int(term))
local reply = { "ok", int(now), term }
for i = 1, lanes_n do
  local name = ARGV[lane_at + (i - 1) * lane_w + LANE_NAME]
  reply[#reply + 1] = {
    redis.call("HGET", sizing_key, name) or "",
    redis.call("HGET", counts_key(i), "enqueued") or "0",
    redis.call("HGET", fleet_key, "slots:" .. name) or "0",
    redis.call("HGETALL", fine_key(i)),
    redis.call("HGETALL", before_key(i)),
  }
end
return reply
