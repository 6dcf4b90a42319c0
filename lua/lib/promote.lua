-- @include arm
-- @include head
-- @include place
-- promote: due jobs become waiting in the order in which they became due, at
-- most 500 a call, fewer after 4 MiB of bodies. Returns the next due instant, or
-- nothing; now, when more may be due.
local function promote()
  local first
  local room, bytes = 500, 0
  for i = 1, lanes_n do
    local due =
      redis.call("ZRANGEBYSCORE", scheduled_key(i), "-inf", int(now), "WITHSCORES", "LIMIT", 0, room)
    if #due > 0 then
      local ids = {}
      for j = 1, #due, 2 do
        local id, ready = due[j], tonumber(due[j + 1])
        local record = redis.call("HGET", jobs_key, id)
        local boost = record and option_of(head_of(record), "b") or 0
        redis.call("ZADD", waiting_key(i), int(place(i, ready - boost)), id)
        ids[#ids + 1] = id
        bytes = bytes + (record and #record or 0)
        if bytes > 4194304 then
          room = #ids
          break
        end
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
