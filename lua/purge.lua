-- purge: drop waiting and scheduled jobs of a lane, a bounded number a call.
-- FLAGS   allow-oom
-- KEYS    jobs runs outcomes history progress watchers task_counts | waiting* scheduled* counts* shares*
-- ARGV    limit:int
-- RETURNS {"ok", purged}: call again while purged is not 0
-- COST    O(limit × log N), limit at most 1,000; stops sooner after 2 MiB of bodies
-- KEEPS   a running job is not touched; enqueued still adds up, through the count
--         purged; who watches a purged job is told, with no outcome
-- @include head
-- @include bump
-- @include erase
-- @include step
local room, bytes = math.min(limit, 1000), 0
local is_watched = redis.call("EXISTS", watchers_key) == 1
local purged = 0
for i = 1, lanes_n do
  for _, place in ipairs({ waiting_key(i), scheduled_key(i) }) do
    while room > 0 do
      local ids = redis.call("ZRANGE", place, 0, int(step_of(room, purged, bytes) - 1))
      if #ids == 0 then break end
      local records = redis.call("HMGET", jobs_key, unpack(ids))
      for j, id in ipairs(ids) do
        local record = records[j]
        local task = record and task_of(head_of(record)) or "?"
        bump(i, task, "purged", 1)
        bytes = bytes + (record and #record or 0)
        if is_watched and redis.call("ZREM", watchers_key, id) == 1 then
          redis.call("PUBLISH", string.sub(jobs_key, 1, -5) .. "ended:" .. id, "purged")
        end
      end
      redis.call("ZREMRANGEBYRANK", place, 0, int(#ids - 1))
      erase(ids)
      purged = purged + #ids
      room = bytes > 2097152 and 0 or room - #ids
    end
  end
end
for i = 1, lanes_n do
  if redis.call("EXISTS", waiting_key(i)) == 0 then redis.call("DEL", shares_key(i)) end
end
-- @include end_counts
return { "ok", purged }
