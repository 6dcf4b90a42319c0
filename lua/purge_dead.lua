-- purge_dead: drop dead letters of a lane, oldest first, a bounded number a call.
-- FLAGS   allow-oom
-- KEYS    jobs runs outcomes history progress | dead*
-- ARGV    limit:int
-- EACH    job id
-- RETURNS {"ok", purged}: with no ids given, call again while purged is not 0
-- COST    O(limit × log N)
-- @include erase
local purged = 0
for i = 1, lanes_n do
  local ids = {}
  if job_n > 0 then
    for j = 1, job_n do
      local id = ARGV[job_at + (j - 1) * job_w + JOB_ID]
      if redis.call("ZSCORE", dead_key(i), id) then ids[#ids + 1] = id end
    end
  elseif purged < limit then
    ids = redis.call("ZRANGE", dead_key(i), 0, limit - purged - 1)
  end
  if #ids > 0 then
    erase(ids)
    redis.call("ZREM", dead_key(i), unpack(ids))
    purged = purged + #ids
  end
end
return { "ok", purged }
