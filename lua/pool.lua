-- pool: read what the lanes of a worker ask for now, and which slots of the fleet serve them.
-- FLAGS   allow-oom
-- KEYS    state lanes overrides jobs workers beats
-- KEYS    | waiting* scheduled* counts* fine* before* coarse*
-- ARGV    worker_id
-- RETURNS {"ok", now, rank, pools, row...}; row: slo priority is_paused waiting head_ready
--         started runs run slots fixed least most kept
--         rank: the worker's place, from 0, among the `pools` workers that can change their slots;
--         slo in µs, -1 for none; head_ready: when the first job that waits became ready, -1
--         where none does; run: mean of `runs` in µs;
--         slots of live workers that serve the lane, of which `fixed` cannot change and the
--         others have between `least` and `most`; kept: those that workers keep for it
-- COST    O(lanes × buckets), and O(workers) for one call a second of all workers together
-- KEEPS   at most 1,000 workers are counted
--
-- Lanes that nothing is sized for, those below every lane with an objective, have no figures of
-- what waits. What the fleet has is added up at most once a second, more seldom in a large fleet,
-- and kept in the state: so that each worker's question does not cost a look at all others.
-- @include clock
-- @include ready
-- @include lane_name
start_clock(tonumber(redis.call("HGET", state_key, "clock") or "0"))
local names = {}
for i = 1, lanes_n do
  names[i] = lane_name(i)
end
local function settings_of()
  local settings = {}
  local declared = redis.call("HMGET", lanes_key, unpack(names))
  local set = redis.call("HMGET", overrides_key, unpack(names))
  for i = 1, lanes_n do
    local lane = declared[i] and cjson.decode(declared[i]) or {}
    for option, value in pairs(set[i] and cjson.decode(set[i]) or {}) do
      lane[option] = value
    end
    settings[i] = lane
  end
  return settings
end

local function count_fleet()
  local alive =
    redis.call("ZRANGEBYSCORE", beats_key, int(now), "+inf", "LIMIT", "0", "1000")
  local order, lanes = {}, {}
  local infos = #alive > 0 and redis.call("HMGET", workers_key, unpack(alive)) or {}
  for j, id in ipairs(alive) do
    local info = infos[j] and cjson.decode(infos[j])
    if info then
      local pool = type(info.pool) == "table" and info.pool
      local reserved, capacity = 0, pool and pool.max or info.slots
      for _, n in pairs(info.reserve) do
        reserved = reserved + n
      end
      if pool then order[#order + 1] = id end
      for _, name in ipairs(pool and pool.lanes or info.lanes) do
        local kept = info.reserve[name] or 0
        -- A worker of which all slots are kept serves no other lane.
        if kept > 0 or reserved < capacity then
          local sums = lanes[name] or { 0, 0, 0, 0, 0 }
          sums[1] = sums[1] + info.slots
          if pool then
            sums[3], sums[4] = sums[3] + pool.min, sums[4] + pool.max
          else
            sums[2] = sums[2] + info.slots
          end
          sums[5] = sums[5] + kept
          lanes[name] = sums
        end
      end
    end
  end
  table.sort(order)
  local fleet = {
    at = int(now),
    every = math.max(900000, #alive * 10000),
    is_cut = #alive == 1000,
    pools = #order,
    order = table.concat(order, " "),
    lanes = lanes,
  }
  redis.call("HSET", state_key, "pools", cjson.encode(fleet))
  return fleet
end
local function place_in(fleet)
  local from = string.find(" " .. fleet.order, " " .. worker_id, 1, true)
  if not from then return nil end
  local _, before = string.gsub(string.sub(fleet.order, 1, from - 1), " ", "")
  return before
end
local text = redis.call("HGET", state_key, "pools")
local fleet = text and cjson.decode(text)
local age = fleet and now - tonumber(fleet.at)
local rank = fleet and place_in(fleet)
if not fleet or age < 0 or age >= fleet.every or not (rank or fleet.is_cut) then
  fleet = count_fleet()
  rank = place_in(fleet)
end

local function mean_run(i)
  local runs, total = 0, 0
  local function add(row)
    for j = 1, #row, 2 do
      local bucket = string.match(row[j], "^r(%d+)$")
      if bucket then
        local n = tonumber(row[j + 1])
        runs, total = runs + n, total + n * 1.1 ^ (tonumber(bucket) + 0.5)
      end
    end
  end
  add(redis.call("HGETALL", fine_key(i)))
  add(redis.call("HGETALL", before_key(i)))
  if runs == 0 then add(redis.call("HGETALL", coarse_key(i))) end
  return runs, runs > 0 and total / runs or 0
end

local settings, lowest = settings_of(), nil
for i = 1, lanes_n do
  local lane = settings[i]
  if type(lane.slo_us) == "number" and not lane.paused then
    if not lowest or lane.priority < lowest then lowest = lane.priority end
  end
end
local reply = { "ok", int(now), rank or 0, fleet.pools }
for i = 1, lanes_n do
  local lane = settings[i]
  local priority = lane.priority or 0
  local waiting, ready, started, runs, run = 0, -1, 0, 0, 0
  if lowest and priority >= lowest and not lane.paused then
    local due = redis.call("ZCOUNT", scheduled_key(i), "-inf", int(now))
    waiting = redis.call("ZCARD", waiting_key(i)) + due
    local head = redis.call("ZRANGE", waiting_key(i), "0", "0", "WITHSCORES")
    ready = head[1] and ready_of(head[1], tonumber(head[2])) or -1
    local first = due > 0 and redis.call("ZRANGE", scheduled_key(i), "0", "0", "WITHSCORES") or {}
    if first[2] and (ready < 0 or tonumber(first[2]) < ready) then ready = tonumber(first[2]) end
    started = tonumber(redis.call("HGET", counts_key(i), "started") or "0")
    runs, run = mean_run(i)
  end
  local sums = fleet.lanes[names[i]] or { 0, 0, 0, 0, 0 }
  reply[#reply + 1] = {
    type(lane.slo_us) == "number" and lane.slo_us or -1,
    string.format("%.17g", priority),
    lane.paused and 1 or 0,
    waiting,
    int(ready),
    started,
    runs,
    int(run),
    unpack(sums),
  }
end
return reply
