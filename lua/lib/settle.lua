-- @include finish
-- @include note
-- @include put
-- @include back
-- settle: take in what a worker reports of its attempts. A report counts only
-- under the fence of the attempt's claim; any other is stale and changes
-- nothing. Returns the ids that were stale. Jobs that the attempt enqueued are
-- committed with its outcome or not at all.
--   succeeded NUMBER = µs to keep the result, BODY = the result
--   cancelled NUMBER = µs to keep the record
--   retried   NUMBER = µs until it is ready again, BODY = the error
--   dead      BODY = the error
--   handed_back          to the front of its lane; spends no attempt
--   snoozed   NUMBER = µs until it is ready again; spends no attempt
local function settle(dead_max_of)
  local stale = {}
  if outcome_n == 0 then return stale end
  local ids, seen, settled, leaving = {}, {}, {}, {}
  for j = 1, outcome_n do
    ids[j] = ARGV[outcome_at + (j - 1) * outcome_w + OUTCOME_ID]
  end
  local lines = redis.call("HMGET", runs_key, unpack(ids))
  for j = 1, outcome_n do
    local at = outcome_at + (j - 1) * outcome_w
    local i, id = tonumber(ARGV[at + OUTCOME_LANE]), ids[j]
    local run = lines[j] and read_run(lines[j])
    if not run or seen[id] or run.fence ~= ARGV[at + OUTCOME_FENCE] then
      stale[#stale + 1] = id
      bump(i, run and run.task, "stale", 1)
    else
      seen[id], settled[j] = true, true
      local kind, number = ARGV[at + OUTCOME_KIND], tonumber(ARGV[at + OUTCOME_NUMBER])
      local body = ARGV[at + OUTCOME_BODY]
      local failed = kind == "retried" or kind == "dead"
      if failed then
        bump(i, run.task, "failed_attempts", 1)
        note(id, run, "failed", body)
      elseif kind == "handed_back" or kind == "snoozed" then
        bump(i, run.task, "handed_back", 1)
        run.attempt = run.attempt - 1
      end
      if run.cancel == "1" and kind ~= "cancelled" then
        -- Somebody was told that it will be cancelled: how it ended is discarded.
        if kind ~= "succeeded" then number = 300000000 end
        kind, body = "cancelled", ""
      end
      if kind == "retried" then
        bump(i, run.task, "retried", 1)
        back_later(i, id, run, now + number)
      elseif kind == "snoozed" then
        back_later(i, id, run, now + number)
      elseif kind == "handed_back" then
        back_to_front(i, id, run)
      else
        local left = leaving[i]
        if not left then
          left = {}
          leaving[i] = left
        end
        left[#left + 1] = id
        finish(i, id, kind, run, number, body, dead_max_of(i))
      end
    end
  end
  for i, left in pairs(leaving) do
    redis.call("ZREM", leases_key(i), unpack(left))
  end
  local touched = {}
  for j = 1, child_n do
    local at = child_at + (j - 1) * child_w
    if settled[tonumber(ARGV[at + CHILD_OUTCOME])] then
      local i = tonumber(ARGV[at + CHILD_LANE])
      local _, is_ready =
        put(i, ARGV[at + CHILD_ID], ARGV[at + CHILD_RECORD], ARGV[at + CHILD_WHEN])
      if is_ready then touched[i] = true end
    end
  end
  for i in pairs(touched) do
    arm(i)
  end
  return stale
end
