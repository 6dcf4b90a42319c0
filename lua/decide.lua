-- decide: write decisions on automatic reserves; a reserve that changes is in force at once.
-- FLAGS   allow-oom
-- KEYS    state lanes overrides sizing fleet
-- ARGV    worker_id term:int
-- EACH    decision lane json
-- RETURNS {"ok"} | {"lost"}: the duty is another's by now, nothing was written
-- COST    O(lanes + live workers) where a reserve changes
-- @include clock
-- @include configure
start_clock(tonumber(redis.call("HGET", state_key, "clock") or "0"))
local holder, till, of_term =
  string.match(redis.call("HGET", state_key, "sizer") or "", "^(%S+) (%d+) (%d+)$")
if holder ~= worker_id or tonumber(of_term) ~= term or tonumber(till) <= now then return { "lost" } end
for j = 1, decision_n do
  local at = decision_at + (j - 1) * decision_w
  redis.call("HSET", sizing_key, ARGV[at + DECISION_LANE], ARGV[at + DECISION_JSON])
end
configure()
return { "ok" }
