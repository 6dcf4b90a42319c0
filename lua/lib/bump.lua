-- @include text
-- bump: count events of a lane and its task; written once, by flush_counts, so
-- that a call that moves a hundred jobs writes each counter once.
local lane_events, task_events = {}, {}
local function bump(i, task, event, n)
  local of_lane = lane_events[i]
  if not of_lane then
    of_lane = {}
    lane_events[i] = of_lane
  end
  of_lane[event] = (of_lane[event] or 0) + n
  if task then
    local of_task = task_events[task]
    if not of_task then
      of_task = {}
      task_events[task] = of_task
    end
    of_task[event] = (of_task[event] or 0) + n
  end
end
-- Task names come from producers, so their number has a bound: past 5,000
-- fields the counts of further tasks go to the task `*`. A task whose first event
-- was counted by itself stays so, or its counts would not add up.
local function flush_counts()
  for i, events in pairs(lane_events) do
    for event, n in pairs(events) do
      redis.call("HINCRBY", counts_key(i), event, int(n))
    end
  end
  for task, events in pairs(task_events) do
    for event, n in pairs(events) do
      local field = task .. "\t" .. event
      local total = redis.call("HINCRBY", task_counts_key, field, int(n))
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
end
