-- @include text
-- @include fleet
-- unload: a worker is gone, and with it what it had free.
local function unload(worker)
  local line = redis.call("HGET", fleet_key, line_field(worker))
  if not line then return end
  local slots, free, names = read_line(line)
  for name in string.gmatch(names, "[^,]+") do
    if redis.call("HEXISTS", fleet_key, "slots:" .. name) == 1 then
      redis.call("HINCRBY", fleet_key, "slots:" .. name, int(-slots))
      redis.call("HINCRBY", fleet_key, "free:" .. name, int(-free))
    end
  end
  redis.call("HDEL", fleet_key, line_field(worker))
  local deaf = redis.call("HGET", fleet_key, "deaf")
  if deaf and has_name(deaf, worker) then
    redis.call("HSET", fleet_key, "deaf", without_name(deaf, worker))
  end
end
