-- @include tally
-- configure: work the declarations and what operators set into the rows that
-- callers of claims pass, most urgent lane first, as JSON in the state hash:
--   {"lanes": [[name, priority, aging per µs, aging cap, paused 0|1, lease µs,
--     dead_max, dead_age µs, reserve, max_running, µs per start, max_depth,
--     fair 0|1, reserve in force], ...]}
-- with -1 for no limit. What enqueues look at is apart, since it is rare:
--   doors: {"LANE": {"most": max_depth, "weights": {key: weight}}, ...}
-- A reserve that is "auto" is in force as it was last decided
-- (the sizing hash), and with 0 before that. The version rises only when something changed: a claim
-- made with another version is told so and does nothing, so that index i means
-- the same lane, with the same settings, on both sides. All workers are told.
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
  -- "5/10m": µs from one start to the next.
  local units = { ms = 1000, s = 1000000, m = 60000000, h = 3600000000, d = 86400000000 }
  local function per_start(rate)
    if type(rate) ~= "string" then return -1 end
    local starts, count, unit = string.match(rate, "^(%d+)/([%d.]*)(%a+)$")
    if not starts then return -1 end
    return (tonumber(count) or 1) * units[unit] / tonumber(starts)
  end
  local function in_force(name, lane)
    if lane.reserve ~= "auto" then return number(lane.reserve) end
    local decided = redis.call("HGET", sizing_key, name)
    return decided and number(cjson.decode(decided).value) or 0
  end
  local reserved, doors = {}, {}
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
      per_start(lane.rate),
      number(lane.max_depth),
      type(lane.fair_by) == "string" and 1 or 0,
      in_force(name, lane),
    }
    if rows[j][12] >= 0 or rows[j][13] == 1 then
      local weights = type(lane.fair_weights) == "table" and lane.fair_weights or {}
      doors[name] = {
        most = rows[j][12] >= 0 and rows[j][12] or nil,
        weights = rows[j][13] == 1 and weights or nil,
      }
    end
    if rows[j][14] > 0 and rows[j][5] == 0 then reserved[#reserved + 1] = name end
  end
  if next(doors) then
    redis.call("HSET", state_key, "doors", cjson.encode(doors))
  else
    redis.call("HDEL", state_key, "doors")
  end
  local text = cjson.encode({ lanes = rows })
  if redis.call("HGET", state_key, "config") ~= text then
    redis.call("HSET", state_key, "config", text)
    redis.call("HINCRBY", state_key, "version", 1)
    -- Claims say anew which lanes are at a limit.
    redis.call("HDEL", state_key, "shut")
    tally(reserved)
    -- Idle workers claim at once: what was closed to them may be open now.
    redis.call("PUBLISH", string.sub(state_key, 1, -6) .. "control", "lanes")
    return true
  end
  return false
end
