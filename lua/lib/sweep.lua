-- @include recover
-- @include drop
-- @include unload
-- sweep: bring back expired leases and drop what has outlived its time or its
-- lane's number, a bounded number of each. Returns whether there may be more.
local function sweep(dead_max_of, dead_age_of)
  local upto, more, room = int(now), false, 100
  for i = 1, lanes_n do
    local lost = redis.call("ZRANGEBYSCORE", leases_key(i), "-inf", upto, "LIMIT", 0, int(room))
    for _, id in ipairs(lost) do
      recover(i, id, dead_max_of(i))
    end
    room = room - #lost
    more = more or room == 0
    -- A limit may have been lowered since the letters came.
    more = drop_letters(i, dead_max_of(i)) or more
    local age = dead_age_of(i)
    if age >= 0 then
      local old = redis.call("ZRANGEBYSCORE", dead_key(i), "-inf", int(now - age), "LIMIT", 0, 100)
      if #old > 0 then
        erase(old)
        redis.call("ZREM", dead_key(i), unpack(old))
        bump(i, nil, "dropped", #old)
        more = more or #old == 100
      end
    end
  end
  local over = redis.call("ZRANGEBYSCORE", ended_key, "-inf", upto, "LIMIT", 0, 250)
  if #over > 0 then
    erase(over)
    redis.call("ZREM", ended_key, unpack(over))
    more = more or #over == 250
  end
  local silent = redis.call("ZRANGEBYSCORE", beats_key, "-inf", upto, "LIMIT", 0, 50)
  for _, worker in ipairs(silent) do
    unload(worker)
  end
  if #silent > 0 then
    redis.call("HDEL", workers_key, unpack(silent))
    redis.call("ZREM", beats_key, unpack(silent))
  end
  local bored = redis.call("ZRANGEBYSCORE", watchers_key, "-inf", upto, "LIMIT", 0, 250)
  if #bored > 0 then redis.call("ZREM", watchers_key, unpack(bored)) end
  return more
end
