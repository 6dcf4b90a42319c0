-- @include arm
-- @include head
-- @include place
-- @include step
-- @include fair
-- place_due: place jobs by the instants at which they became due, less their boost.
local function place_due(i, ids, dues, records)
  local weights = fair_rule(i)
  if weights then
    for j, id in ipairs(ids) do
      local record = records[j] or "?\n"
      local boost = option_of(head_of(record), "b") or 0
      if records[j] then redis.call("HSET", jobs_key, id, with_ready(record, tonumber(dues[j]))) end
      redis.call("ZADD", waiting_key(i), int(fair_place(i, weights, record, boost)), id)
    end
    return
  end
  local is_plain = true
  for j = 1, #ids do
    if records[j] and string.find(head_of(records[j]), "\tb=", 1, true) then is_plain = false end
  end
  -- The instants at which jobs are due are unique: if none of the lane's lies
  -- between the first and the last, all can be placed at once.
  if is_plain and redis.call("ZCOUNT", waiting_key(i), dues[1], dues[#dues]) == 0 then
    local rows = {}
    for j, id in ipairs(ids) do
      rows[2 * j - 1], rows[2 * j] = dues[j], id
    end
    redis.call("ZADD", waiting_key(i), unpack(rows))
    return
  end
  for j, id in ipairs(ids) do
    local boost = records[j] and option_of(head_of(records[j]), "b") or 0
    redis.call("ZADD", waiting_key(i), int(place(i, tonumber(dues[j]) - boost)), id)
  end
end
-- promote: due jobs become waiting in the order in which they became due, at
-- most 500 a call, fewer after 2 MiB of bodies. Returns the next due instant, or
-- nothing; now, when more may be due.
local function promote()
  local first
  local room, bytes = 500, 0
  for i = 1, lanes_n do
    repeat
      local n = step_of(room, 500 - room, bytes)
      local found =
        redis.call("ZRANGEBYSCORE", scheduled_key(i), "-inf", int(now), "WITHSCORES", "LIMIT", "0", n)
      local ids, dues = {}, {}
      for j = 1, #found, 2 do
        ids[#ids + 1], dues[#dues + 1] = found[j], found[j + 1]
      end
      if #ids > 0 then
        local records = redis.call("HMGET", jobs_key, unpack(ids))
        place_due(i, ids, dues, records)
        redis.call("ZREM", scheduled_key(i), unpack(ids))
        arm(i)
        for j = 1, #ids do
          bytes = bytes + (records[j] and #records[j] or 0)
        end
      end
      room = bytes > 2097152 and 0 or room - #ids
    until #ids < n or room == 0
    local head = redis.call("ZRANGE", scheduled_key(i), 0, 0, "WITHSCORES")
    if head[2] and (not first or tonumber(head[2]) < first) then first = tonumber(head[2]) end
    if room == 0 then
      first = now
      break
    end
  end
  if first then
    redis.call("HSET", state_key, "next_due", int(first))
  else
    redis.call("HDEL", state_key, "next_due")
  end
  return first
end
