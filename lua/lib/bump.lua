-- @include text
-- bump: count events of a lane and its task; written once, by end_counts, so
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
