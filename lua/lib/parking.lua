-- @include text
-- @include head
-- @include schedule
-- @include place
-- @include fleet
-- @include lane_name
-- parking: jobs of tasks that are at their own max_running step aside, so that those
-- behind them in the lane may start. A job that is parked is scheduled: all that looks
-- for, cancels or purges jobs finds it there. The parked set has what tells where it
-- belongs, by name, "task TAB score TAB lane TAB id": the first of a task is its
-- oldest. It is only an index: who is released is looked up among the scheduled, and
-- whom the index lost becomes due within PARKED_US and is weighed again. Beside it,
-- "TAB id TAB score TAB due" is by id: a job that steps aside again keeps its place, and
-- one that is scheduled for another reason by now (a retry, say) is left alone.
--
-- How many of a task run is told by its counts of starts and of ends, which a claim
-- changes in the same script.
local PARKED_US = 60000000
local ENDS = { "succeeded", "failed_attempts", "lost_leases", "handed_back", "stopped" }
local function parking_of(text)
  local caps, rooms, parking = cjson.decode(text), {}, {}
  local function room_of_task(task)
    if rooms[task] or not caps[task] then return rooms[task] end
    if caps[task] < 0 then return math.huge end
    local fields = { task .. "\tstarted" }
    for j, event in ipairs(ENDS) do
      fields[j + 1] = task .. "\t" .. event
    end
    local counts, pending = redis.call("HMGET", task_counts_key, unpack(fields)), task_events[task] or {}
    local running = tonumber(counts[1] or "0") + (pending.started or 0)
    for j, event in ipairs(ENDS) do
      running = running - tonumber(counts[j + 1] or "0") - (pending[event] or 0)
    end
    rooms[task] = caps[task] - running
    return rooms[task]
  end
  local function note_of(id)
    local found = redis.call(
      "ZRANGEBYLEX", parked_key, "[\t" .. id .. "\t", "(\t" .. id .. "\n", "LIMIT", 0, 1
    )[1]
    if not found then return nil end
    return found, string.match(found, "\t(%d+)\t(%d+)$")
  end
  -- Whether a job that is picked has to step aside; else it takes one of the task's starts.
  function parking.holds(i, id, head, score)
    local task = task_of(head)
    local room = room_of_task(task)
    if not room then return false end
    if room > 0 then
      rooms[task] = room - 1
      return false
    end
    local note, at = note_of(id)
    if note then redis.call("ZREM", parked_key, note) end
    at = at or int(tonumber(score))
    local due = int(schedule(i, id, now + PARKED_US))
    redis.call(
      "ZADD", parked_key,
      0, table.concat({ task, at, lane_name(i), id }, "\t"),
      0, table.concat({ "", id, at, due }, "\t")
    )
    return true
  end
  -- A start that came to nothing.
  function parking.give_back(task)
    if rooms[task] then rooms[task] = rooms[task] + 1 end
  end
  -- Bring back as many as may start now, oldest first, each to its old place. Returns
  -- whether there may be more: what was cancelled or purged is still in the index.
  function parking.release()
    local index, is_more = {}, false
    for i = 1, lanes_n do
      index[lane_name(i)] = i
    end
    for task in pairs(caps) do
      local room, left = room_of_task(task), 100
      while room > 0 and left > 0 do
        local found = redis.call(
          "ZRANGEBYLEX", parked_key, "[" .. task .. "\t", "(" .. task .. "\n", "LIMIT", 0, 1
        )
        if not found[1] then break end
        redis.call("ZREM", parked_key, found[1])
        local at, lane, id = string.match(found[1], "^[^\t]*\t(%d+)\t([^\t]*)\t(.*)$")
        local i = at and index[lane]
        local note, _, due = note_of(id or "")
        if note then redis.call("ZREM", parked_key, note) end
        local score = i and due and redis.call("ZSCORE", scheduled_key(i), id)
        if score and int(tonumber(score)) == due then
          redis.call("ZADD", waiting_key(i), int(place(i, tonumber(at))), id)
          redis.call("ZREM", scheduled_key(i), id)
          arm(i)
          room = room - 1
        end
        left = left - 1
      end
      is_more = is_more or left == 0
    end
    return is_more
  end
  return parking
end
