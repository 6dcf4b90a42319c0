-- @include lane_name
-- doors: what a lane asks of jobs that come in, from the state hash; see
-- lib/configure.lua. Most namespaces have none.
local doors
local function door_of(i)
  if doors == nil then
    local text = redis.call("HGET", state_key, "doors")
    doors = text and cjson.decode(text) or false
  end
  return doors and doors[lane_name(i)]
end
-- fair_rule: the weights of lane i by key; nothing where it is not fair.
local function fair_rule(i)
  local door = door_of(i)
  return door and door.weights
end
