-- @include arm
-- @include head
-- @include place
-- promote: due jobs become waiting in the order in which they became due, at
-- most 500 a call. Returns the next due instant, or nothing.
local function promote()
  local first
  local room = 500
  for i = 1, lanes_n do
    local due =
      redis.call("ZRANGEBYSCORE", scheduled_key(i), "-inf", int(now), "WITHSCORES", "LIMIT", 0, room)
    if #due > 0 then
      local ids = {}
      for j = 1, #due, 2 do
        ids[#ids + 1] = due[j]
      end
      local records = redis.call("HMGET", jobs_key, unpack(ids))
      for j, id in ipairs(ids) do
        local ready = tonumber(due[2 * j])
        local boost = records[j] and option_of(head_of(records[j]), "b") or 0
        redis.call("ZADD", waiting_key(i), int(place(i, ready - boost)), id)
      end
      redis.call("ZREM", scheduled_key(i), unpack(ids))
      room = room - #ids
      arm(i)
    end
    local head = redis.call("ZRANGE", scheduled_key(i), 0, 0, "WITHSCORES")
    if head[2] and (not first or tonumber(head[2]) < first) then first = tonumber(head[2]) end
    if room <= 0 then
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
