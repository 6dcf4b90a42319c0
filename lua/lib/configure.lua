-- configure: work the declarations and what operators set into the rows that
-- callers of claims pass, most urgent lane first, as JSON in the state hash:
--   {"lanes": [[name, priority, aging per µs, aging cap, paused 0|1, lease µs,
--     dead_max, dead_age µs, reserve, max_running], ...]}
-- with -1 for no limit. The version rises only when something changed: a claim
-- made with another version is told so and does nothing, so that index i means
-- the same lane, with the same settings, on both sides.
local function configure()
  local names, rows = {}, {}
  local declared, set = redis.call("HGETALL", lanes_key), redis.call("HGETALL", overrides_key)
  local over = {}
  for j = 1, #set, 2 do
    over[set[j]] = cjson.decode(set[j + 1])
  end
  local function number(value)
    return type(value) == "number" and value or -1
  end
  local lanes = {}
  for j = 1, #declared, 2 do
    local name, lane = declared[j], cjson.decode(declared[j + 1])
    for option, value in pairs(over[name] or {}) do
      lane[option] = value
    end
    names[#names + 1] = name
    lanes[name] = lane
  end
  table.sort(names, function(a, b)
    local x, y = lanes[a].priority, lanes[b].priority
    if x ~= y then return x > y end
    return a < b
  end)
  for j, name in ipairs(names) do
    local lane = lanes[name]
    rows[j] = {
      name,
      lane.priority,
      lane.aging / 1000000,
      lane.aging_cap,
      lane.paused and 1 or 0,
      lane.lease_us,
      number(lane.dead_max),
      number(lane.dead_age_us),
      lane.reserve == "auto" and "auto" or number(lane.reserve),
      number(lane.max_running),
    }
  end
  local text = cjson.encode({ lanes = rows })
  if redis.call("HGET", state_key, "config") ~= text then
    redis.call("HSET", state_key, "config", text)
    redis.call("HINCRBY", state_key, "version", 1)
    return true
  end
  return false
end
