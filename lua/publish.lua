-- publish: make an app's lanes and tasks known, for workers, producers and operators.
-- FLAGS   allow-oom
-- KEYS    state lanes overrides sizing fleet tasks parked
-- ARGV    schema:int
-- EACH    lane name json
-- EACH    task name line
-- RETURNS {"ok", version, config}
-- ERRORS  schema N: the namespace was made by another schema of laneq
-- COST    O(lanes + tasks)
-- KEEPS   what an operator set is not touched
-- @include configure
local known = redis.call("HGET", state_key, "schema")
if known and tonumber(known) ~= schema then return { "schema", known } end
if not known and redis.call("EXISTS", lanes_key) == 1 then
  -- The state was evicted or deleted, and with it when the next job is due: a claim
  -- is to look at once.
  redis.call("HSET", state_key, "next_due", "0")
end
redis.call("HSET", state_key, "schema", schema)
for i = 1, lane_n do
  local at = lane_at + (i - 1) * lane_w
  redis.call("HSET", lanes_key, ARGV[at + LANE_NAME], ARGV[at + LANE_JSON])
end
for i = 1, task_n do
  local at = task_at + (i - 1) * task_w
  redis.call("HSET", tasks_key, ARGV[at + TASK_NAME], ARGV[at + TASK_LINE])
end
-- The tasks with a max_running of their own: claims look at these.
local capped = cjson.decode(redis.call("HGET", state_key, "capped") or "{}")
for i = 1, task_n do
  local at = task_at + (i - 1) * task_w
  local name = ARGV[at + TASK_NAME]
  local most = string.match(ARGV[at + TASK_LINE], "^%S+ %d+ %d+ %d+ %d+ %d+ (%d+)")
  if most then
    capped[name] = tonumber(most)
  elseif capped[name] then
    -- What is parked is released as if there were no limit; then it is forgotten.
    local is_parked = redis.call(
      "ZRANGEBYLEX", parked_key, "[" .. name .. "\t", "(" .. name .. "\n", "LIMIT", 0, 1
    )
    capped[name] = is_parked[1] and -1 or nil
  end
end
if next(capped) then
  redis.call("HSET", state_key, "capped", cjson.encode(capped))
else
  redis.call("HDEL", state_key, "capped")
end
configure()
return { "ok", redis.call("HGET", state_key, "version"), redis.call("HGET", state_key, "config") }
