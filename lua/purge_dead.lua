-- purge_dead: drop dead letters of a lane, oldest first, a bounded number a call.
-- FLAGS   allow-oom
-- KEYS    jobs runs outcomes history progress | dead*
-- ARGV    limit:int
-- EACH    job id
-- RETURNS {"ok", purged}: with no ids given, call again while purged is not 0
-- COST    O(limit × log N), limit at most 1,000 where no ids are given
-- KEEPS   no count changes: `dead` counts deaths, the set has the letters that are left
-- @include erase
local room = math.min(limit, 1000)
local purged = 0
for i = 1, lanes_n do
  local ids = {}
  if job_n > 0 then
    for j = 1, job_n do
      local id = ARGV[job_at + (j - 1) * job_w + JOB_ID]
      if redis.call("ZREM", dead_key(i), id) == 1 then ids[#ids + 1] = id end
    end
  elseif room > purged then
    ids = redis.call("ZRANGE", dead_key(i), 0, room - purged - 1)
    if #ids > 0 then redis.call("ZREM", dead_key(i), unpack(ids)) end
  end
  erase(ids)
  purged = purged + #ids
end
return { "ok", purged }
