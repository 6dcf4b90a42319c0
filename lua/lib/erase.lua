-- erase: drop every trace of ended jobs but their counts.
local function erase(ids)
  if #ids == 0 then return end
  redis.call("HDEL", jobs_key, unpack(ids))
  redis.call("HDEL", runs_key, unpack(ids))
  redis.call("HDEL", outcomes_key, unpack(ids))
  redis.call("HDEL", history_key, unpack(ids))
  redis.call("HDEL", progress_key, unpack(ids))
end
