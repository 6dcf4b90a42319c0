-- @include text
-- @include arm
-- @include lane_name
-- @include fleet
-- limits_of: how many more jobs of each lane may start, whatever slots the worker has
-- free: reserves of the fleet, max_running and rate. Made by calls of workers that
-- were told of any such limit, in three parts, lanes by index:
--   "LANE=SLOTS ..|1|,NAME,.."
-- reserves; whether any lane has a max_running or a rate, which its rule says (see
-- claim.lua); names of the lanes that the worker serves. It is read as far as a call
-- needs it: a lane without work costs nothing.
--
-- Reserves. A start of lane x must leave free as many slots, of the live workers
-- that serve a lane y with a reserve, as y's reserve lacks. Only workers that serve
-- such a lane are held to that: a start elsewhere takes no slot from it. Of several
-- pools the least one counts. What a worker has free is noted in its own line and
-- in the sum of each reserved lane, see lib/fleet.lua.
--
-- Rates. The generic cell rate algorithm (ITU-T I.371, 1996): `tat` is when the next
-- start would be due if they were evenly spaced.
--
-- Waking. Two marks say who must be woken when a limit gives way.
--   tight, in the fleet hash: lanes of which some worker was told that the reserves
--     of others leave it nothing; it does not listen for them, and stands in deaf
--     until it is told otherwise. A call that started or ended a job, finds one open
--     again and cannot serve it itself wakes a worker that waits for a reserved lane.
--     A call that did neither wakes nobody, or workers that cannot help would wake
--     each other without end.
--   shut, in the state hash: lanes at their max_running or rate. All go on
--     listening, and nobody puts a token for them until a claim finds one open. A claim
--     looks at those that it would start a job of and at those marked. Rates open by
--     themselves: an idle worker has the watch for that instant.
local function limits_of(text, slots, free)
  local bar = string.find(text, "|", 1, true)
  local next_bar = string.find(text, "|", bar + 1, true)
  local reserves = string.sub(text, 1, bar - 1)
  local are_capped, names = next_bar > bar + 1, string.sub(text, next_bar + 1)
  local limits, mine, held = {}, {}, {}
  local pool_slots, pool_free
  local kept, used, lack, short = {}, {}, {}, 0
  local fields, found
  local was_slots, was_free, was_names
  if reserves ~= "" then
    fields = { line_field(worker_id), "tight", "deaf" }
    for i, n in string.gmatch(reserves, "(%d+)=(%d+)") do
      i = i + 0
      local name, at = lane_name(i), #fields
      fields[at + 1], fields[at + 2] = "slots:" .. name, "free:" .. name
      held[#held + 1] = { i = i, name = name, slots = n + 0, at = at + 1 }
    end
    found = redis.call("HMGET", fleet_key, unpack(fields))
    was_slots, was_free, was_names = read_line(found[1])
    -- The pool: sums of the reserved lanes that this worker serves, with what it has
    -- free in this call in place of what it had in its last.
    for _, row in ipairs(held) do
      row.is = has_name(names, row.name)
      row.was = row.is
      if was_names ~= names then row.was = has_name(was_names, row.name) end
      if row.is then
        local of_slots = (found[row.at] or 0) - (row.was and was_slots or 0) + slots
        local of_free = (found[row.at + 1] or 0) - (row.was and was_free or 0) + free
        if not pool_slots or of_slots < pool_slots then pool_slots = of_slots end
        if not pool_free or of_free < pool_free then pool_free = of_free end
        mine[#mine + 1] = row
      end
    end
    -- As order.fleet_reserve: one slot stays open to the others, and reserves that
    -- cannot all be met do not keep each other's slots idle.
    local open_to, left = math.max(0, (pool_slots or 0) - 1), math.max(0, pool_free or 0)
    for _, row in ipairs(mine) do
      local i, n = row.i, math.min(row.slots, open_to)
      used[i] = redis.call("ZCARD", leases_key(i))
      if n > used[i] then
        n = used[i] + math.min(n - used[i], left)
        left = left - (n - used[i])
      end
      kept[i], open_to = n, open_to - n
      lack[i] = math.max(0, n - used[i])
      short = short + lack[i]
    end
  end

  -- caps[i]: what max_running and rate leave to lane i; false where it has neither.
  -- capped: lanes that have one and were looked at.
  local caps, capped, opens_at, was_shut = per_lane(), {}, nil, nil
  local function cap_of(i)
    local cap = caps[i]
    if cap ~= nil then return cap end
    read_rules()
    local rule = rule_by[i]
    local most, per_start, catch_up = rule[4], rule[5], rule[6]
    if not most then
      caps[i] = false
      return false
    end
    cap = {
      room = math.huge, slots = math.huge, taken = 0,
      per_start = false, catch_up = false, field = false, from = false,
    }
    if most >= 0 then
      cap.slots = most - (used[i] or redis.call("ZCARD", leases_key(i)))
      cap.room = cap.slots
    end
    if per_start > 0 then
      local field = "tat:" .. lane_name(i)
      -- A start leaves it so far ahead at most, or the rate was slower then.
      local from = (redis.call("HGET", fleet_key, field) or 0) + 0
      if from > now + catch_up + per_start + 1 or from < now then from = now end
      cap.per_start, cap.catch_up, cap.field, cap.from = per_start, catch_up, field, from
      local spare = now + catch_up - from
      local starts = spare >= 0 and math.floor(spare / per_start) + 1 or 0
      if starts < cap.room then cap.room = starts end
    end
    caps[i], capped[#capped + 1] = cap, i
    return cap
  end
  -- How many more jobs of lane i the reserves of the fleet leave slots for, `room` at most.
  function limits.of_fleet(i, room)
    local left = pool_free and pool_free - short + (lack[i] or 0)
    return left and left < room and left or room
  end
  -- How many its max_running and its rate let start too.
  function limits.room_of(i, room)
    local left = pool_free and pool_free - short + (lack[i] or 0)
    if left and left < room then room = left end
    local cap = are_capped and (caps[i] or cap_of(i))
    return cap and cap.room < room and cap.room or room
  end
  local function is_shut(i)
    local cap = are_capped and cap_of(i)
    return cap and cap.room <= 0
  end
  -- The lanes, by index, that a claim before this one, or this one, found at their
  -- max_running or rate, and that are there still; nothing where there is none.
  function limits.shut()
    if not are_capped then return nil end
    was_shut = redis.call("HGET", state_key, "shut") or ","
    if was_shut ~= "," then
      for i = 1, lanes_n do
        if has_name(was_shut, lane_name(i)) then cap_of(i) end
      end
    end
    local shut
    for _, i in ipairs(capped) do
      if is_shut(i) then
        shut = shut or {}
        shut[i] = true
      end
    end
    return shut
  end
  function limits.take(i, n)
    local cap = are_capped and (caps[i] or cap_of(i))
    if cap then
      cap.room, cap.taken = cap.room - n, cap.taken + n
    end
    if pool_free then
      pool_free = pool_free - n
      if kept[i] then
        used[i] = used[i] + n
        local now_lacks = math.max(0, kept[i] - used[i])
        short, lack[i] = short + now_lacks - lack[i], now_lacks
      end
    end
  end

  -- Note what this worker has free now, and wake who waits for a reserved lane where
  -- others may start again.
  local function note_fleet(free_now, waiting, closed, sets, is_news, can_take)
    local line = string.format("%d %d %s", slots, free_now, names)
    if line ~= found[1] then
      sets[1], sets[2] = fields[1], line
    end
    for _, row in ipairs(held) do
      local by_slots = (row.is and slots or 0) - (row.was and was_slots or 0)
      local by_free = (row.is and free_now or 0) - (row.was and was_free or 0)
      if by_slots ~= 0 then redis.call("HINCRBY", fleet_key, fields[row.at], int(by_slots)) end
      if by_free ~= 0 then redis.call("HINCRBY", fleet_key, fields[row.at + 1], int(by_free)) end
    end
    if not pool_free then return end
    local was_tight, was_deaf = found[2] or ",", found[3] or ","
    local tight, deaf, is_deaf, is_open = was_tight, was_deaf, false, false
    -- Without a free slot it listens for nothing, and will be told when it has one.
    if tight ~= "," or (free_now > 0 and pool_free - short <= 0) then
      for i = 1, lanes_n do
        local name = lane_name(i)
        if limits.of_fleet(i, 1) <= 0 then
          if free_now > 0 and has_name(names, name) then
            closed[#closed + 1], is_deaf = i, true
            if not has_name(tight, name) then tight = tight .. name .. "," end
          end
        elseif is_news and has_name(tight, name) and not is_shut(i) then
          local is_left = waiting[i]
          if is_left == nil then is_left = redis.call("EXISTS", waiting_key(i)) == 1 end
          if is_left then arm(i) end
          if is_left or not can_take(i) then is_open = true end
        end
      end
    end
    local is_noted = deaf ~= "," and has_name(deaf, worker_id)
    if is_noted then deaf = without_name(deaf, worker_id) end
    if is_open and deaf ~= "," then
      for _, row in ipairs(mine) do
        arm(row.i)
      end
    end
    if is_deaf then deaf = is_noted and was_deaf or deaf .. worker_id .. "," end
    if deaf == "," then tight = "," end
    if tight ~= was_tight then
      sets[#sets + 1], sets[#sets + 2] = "tight", tight
    end
    if deaf ~= was_deaf then
      sets[#sets + 1], sets[#sets + 2] = "deaf", deaf
    end
  end

  -- Note starts of lanes with a rate, and which lanes are at a limit.
  local function note_caps(waiting, sets, shut)
    local line = was_shut
    for _, i in ipairs(capped) do
      local cap = caps[i]
      if cap.field and cap.taken ~= 0 then
        sets[#sets + 1], sets[#sets + 2] = cap.field, int(cap.from + cap.taken * cap.per_start)
      end
      if shut and shut[i] then
        local name = lane_name(i)
        if not has_name(line, name) then line = line .. name .. "," end
        if cap.slots > cap.taken and redis.call("EXISTS", waiting_key(i)) == 1 then
          local at = cap.from + cap.taken * cap.per_start - cap.catch_up
          if not opens_at or at < opens_at then opens_at = at end
        end
      end
    end
    for i = 1, was_shut ~= "," and lanes_n or 0 do
      local name = lane_name(i)
      if not (shut and shut[i]) and has_name(line, name) then
        line = without_name(line, name)
        if waiting[i] == nil and redis.call("EXISTS", waiting_key(i)) == 1 then arm(i) end
      end
    end
    if line == was_shut then return end
    if line == "," then
      redis.call("HDEL", state_key, "shut")
    else
      redis.call("HSET", state_key, "shut", line)
    end
  end

  -- At the end of a call. closed gets the lanes that this worker is not to listen for;
  -- shut: what limits.shut said; is_news: a job was started or ended; can_take: whether
  -- this worker has a slot for a job of a lane. Returns when a rate lets the next job
  -- start, where that is all it waits for.
  function limits.note(free_now, waiting, closed, shut, is_news, can_take)
    local sets = {}
    if found then note_fleet(free_now, waiting, closed, sets, is_news, can_take) end
    if are_capped then note_caps(waiting, sets, shut) end
    if #sets > 0 then redis.call("HSET", fleet_key, unpack(sets)) end
    return opens_at and math.ceil(opens_at)
  end
  return limits
end
