-- @include finish
-- @include note
-- @include put
-- @include back
-- settle: take in what a worker reports of one attempt, under the fence of its
-- claim.
--   succeeded NUMBER = µs to keep the result, BODY = the result
--   cancelled NUMBER = µs to keep the record
--   retried   NUMBER = µs until it is ready again, BODY = the error
--   dead      BODY = the error
--   handed_back          to the front of its lane; spends no attempt
--   snoozed   NUMBER = µs until it is ready again; spends no attempt
local function settle(i, id, run, kind, number, body, dead_max)
  if run.is_cancelled and kind ~= "cancelled" then
    -- Somebody was told that it will be cancelled: how it ended is discarded.
    -- Its worker says how long it is kept where it has a result, or knows of the cancel.
    if kind ~= "succeeded" then
      local record = redis.call("HGET", jobs_key, id)
      number = record and option_of(head_of(record), "r") or 300000000
    end
    kind, body = "cancelled", ""
  end
  -- Each attempt ends in one of these counts, or in succeeded or lost_leases.
  if kind == "cancelled" then
    bump(i, run.task, "stopped", 1)
  elseif kind == "retried" or kind == "dead" then
    bump(i, run.task, "failed_attempts", 1)
    note(id, run, "failed", body)
  elseif kind == "handed_back" or kind == "snoozed" then
    bump(i, run.task, "handed_back", 1)
    run.attempt = run.attempt - 1
  end
  if kind == "retried" then
    bump(i, run.task, "retried", 1)
    back_later(i, id, run, now + number)
  elseif kind == "snoozed" then
    back_later(i, id, run, now + number)
  elseif kind == "handed_back" then
    back_to_front(i, id, run)
  else
    redis.call("ZREM", leases_key(i), id)
    finish(i, id, kind, run, number, body, dead_max)
  end
end
