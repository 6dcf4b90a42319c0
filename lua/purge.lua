-- purge: drop waiting and scheduled jobs of a lane, a bounded number a call.
-- FLAGS   allow-oom
-- KEYS    jobs runs outcomes history progress task_counts | waiting* scheduled* counts*
-- ARGV    limit:int
-- RETURNS {"ok", purged}: call again while purged is not 0
-- COST    O(limit × log N)
-- KEEPS   a running job is not touched; enqueued still adds up, through the count purged
-- @include head
-- @include bump
-- @include erase
local purged = 0
for i = 1, lanes_n do
  for _, place in ipairs({ waiting_key(i), scheduled_key(i) }) do
    local ids = redis.call("ZRANGE", place, 0, limit - purged - 1)
    if purged < limit and #ids > 0 then
      local records = redis.call("HMGET", jobs_key, unpack(ids))
      for j = 1, #ids do
        bump(i, records[j] and task_of(head_of(records[j])), "purged", 1)
      end
      redis.call("ZREM", place, unpack(ids))
      erase(ids)
      purged = purged + #ids
    end
  end
end
flush_counts()
return { "ok", purged }
