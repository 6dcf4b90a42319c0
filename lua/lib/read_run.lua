-- @include text
-- The run line of a job, from its first claim to its end:
--   fence worker lane attempt score started enqueued losses flags task
-- fence is 0 between attempts; score is the place in the lane; losses counts
-- expired leases; flags is 1 once somebody asked to cancel it, plus 2 once it has
-- reported progress, plus 4 once its history has an entry. Instants are in µs.
-- read_run returns nothing for a line that cannot be read: it is as no line.
local function read_run(line)
  local fence, worker, lane, attempt, score, started, enqueued, losses, flags, task =
    string.match(line, "^(%d+) (%S+) (%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d) (.*)$")
  if not fence then return nil end
  return {
    fence = fence,
    worker = worker,
    lane = lane,
    attempt = tonumber(attempt),
    score = score,
    started = started,
    enqueued = enqueued,
    losses = tonumber(losses),
    flags = tonumber(flags),
    is_cancelled = tonumber(flags) % 2 == 1,
    task = task,
  }
end
