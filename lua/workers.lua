-- workers: list live workers.
-- FLAGS   no-writes
-- KEYS    state workers beats
-- RETURNS {"ok", now, id until info ...}
-- COST    O(workers), at most 1,000
-- @include clock
start_clock(tonumber(redis.call("HGET", state_key, "clock") or "0"))
local alive = redis.call("ZRANGEBYSCORE", beats_key, int(now), "+inf", "WITHSCORES", "LIMIT", 0, 1000)
local reply = { "ok", int(now) }
for j = 1, #alive, 2 do
  local info = redis.call("HGET", workers_key, alive[j])
  if info then
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3] = alive[j], alive[j + 1], info
  end
end
return reply
