-- end_counts: at the end of a script, write what bump counted.
-- Task names come from producers, so their number has a bound: past 5,000
-- fields the counts of further tasks go to the task `*`. A task whose first event
-- was counted by itself stays so, or its counts would not add up.
for lane, events in pairs(lane_events) do
  for event, n in pairs(events) do
    redis.call("HINCRBY", counts_key(lane), event, n == 1 and "1" or int(n))
  end
end
for task, events in pairs(task_events) do
  for event, n in pairs(events) do
    local field = task .. "\t" .. event
    local total = redis.call("HINCRBY", task_counts_key, field, n == 1 and "1" or int(n))
    if
      total == n
      and redis.call("HLEN", task_counts_key) > 5000
      and (
        event == "enqueued" or redis.call("HEXISTS", task_counts_key, task .. "\tenqueued") == 0
      )
    then
      redis.call("HDEL", task_counts_key, field)
      redis.call("HINCRBY", task_counts_key, "*\t" .. event, int(n))
    end
  end
end
