-- purge: drop waiting and scheduled jobs of a lane, a bounded number a call.
-- FLAGS   allow-oom
-- KEYS    jobs runs outcomes history progress watchers task_counts | waiting* scheduled* counts*
-- ARGV    limit:int
-- RETURNS {"ok", purged}: call again while purged is not 0
-- COST    O(limit × log N), limit at most 1,000; stops sooner after 4 MiB of bodies
-- KEEPS   a running job is not touched; enqueued still adds up, through the count
--         purged; who watches a purged job is told, with no outcome
-- @include head
-- @include bump
-- @include erase
local room, bytes = math.min(limit, 1000), 0
local is_watched = redis.call("EXISTS", watchers_key) == 1
local purged = 0
for i = 1, lanes_n do
  for _, place in ipairs({ waiting_key(i), scheduled_key(i) }) do
    local found = room > 0 and redis.call("ZRANGE", place, 0, room - 1) or {}
    local ids = {}
    for j, id in ipairs(found) do
      local record = redis.call("HGET", jobs_key, id)
      bump(i, record and task_of(head_of(record)), "purged", 1)
      ids[j] = id
      bytes = bytes + (record and #record or 0)
      if bytes > 4194304 then
        room = j
        break
      end
    end
    if #ids > 0 then
      redis.call("ZREM", place, unpack(ids))
      erase(ids)
      room, purged = room - #ids, purged + #ids
    end
    for j = 1, is_watched and #ids or 0 do
      if redis.call("ZREM", watchers_key, ids[j]) == 1 then
        redis.call("PUBLISH", string.sub(jobs_key, 1, -5) .. "ended:" .. ids[j], "purged")
      end
    end
  end
end
flush_counts()
return { "ok", purged }
