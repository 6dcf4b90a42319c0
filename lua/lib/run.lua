-- @include read_run
-- write_run: store the run line of a job, see read_run.lua.
local function write_run(id, run)
  redis.call(
    "HSET",
    runs_key,
    id,
    table.concat({
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
  )
end
