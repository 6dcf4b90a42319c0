-- erase: drop every trace of ended jobs but their counts.
local function erase(ids)
  for from = 1, #ids, 1000 do
    local upto = math.min(from + 999, #ids)
    redis.call("HDEL", jobs_key, unpack(ids, from, upto))
    redis.call("HDEL", runs_key, unpack(ids, from, upto))
    redis.call("HDEL", outcomes_key, unpack(ids, from, upto))
    redis.call("HDEL", history_key, unpack(ids, from, upto))
    redis.call("HDEL", progress_key, unpack(ids, from, upto))
  end
end
