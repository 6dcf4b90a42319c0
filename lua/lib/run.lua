-- @include read_run
-- line_of: the run line of a job, see read_run.lua.
local function line_of(run)
  return table.concat({
    run.fence,
    run.worker,
    run.lane,
    run.attempt,
    run.score,
    run.started,
    run.enqueued,
    run.losses,
    run.flags,
    run.task,
  }, " ")
end
-- write_run: store it.
local function write_run(id, run)
  redis.call("HSET", runs_key, id, line_of(run))
end
