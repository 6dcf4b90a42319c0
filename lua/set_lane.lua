-- set_lane: override a lane's declaration, live; with empty changes, reset it.
-- FLAGS   allow-oom
-- KEYS    state lanes overrides sizing fleet | waiting* wake*
-- ARGV    name changes
-- RETURNS {"ok", version}
-- ERRORS  unknown_lane
-- COST    O(lanes)
-- KEEPS   acts at the next claim; a lane with work wakes a worker
-- @include arm
-- @include configure
if redis.call("HEXISTS", lanes_key, name) == 0 then return { "unknown_lane" } end
if changes == "" then
  redis.call("HDEL", overrides_key, name)
else
  local past = redis.call("HGET", overrides_key, name)
  local over = past and cjson.decode(past) or {}
  for option, value in pairs(cjson.decode(changes)) do
    over[option] = value
  end
  redis.call("HSET", overrides_key, name, cjson.encode(over))
end
configure()
for i = 1, lanes_n do
  if redis.call("EXISTS", waiting_key(i)) == 1 then arm(i) end
end
-- @include end_tokens
return { "ok", redis.call("HGET", state_key, "version") }
