-- @include finish
-- @include note
-- @include back
-- @include lane_name
-- recover: end the attempt of a job whose lease ran out. It spends its attempt
-- as a failure does: the last one makes a dead letter. The first loss keeps the
-- job's place; a job lost again waits for its backoff, since it may be what
-- kills its workers.
local is_seeded = false
local function crash_policy(id, run)
  local record = redis.call("HGET", jobs_key, id)
  local head = record and head_of(record) or "?"
  local published = redis.call("HGET", tasks_key, run.task) or ""
  local most, kind, base, cap, jitter =
    string.match(published, "^%S+ (%d+) (%d+) (%d+) (%d+) ?(%d?)")
  most = option_of(head, "m") or tonumber(most or "3")
  kind = option_of(head, "k") or tonumber(kind or "2")
  base = option_of(head, "f") or tonumber(base or "1000000")
  cap = option_of(head, "c") or tonumber(cap or "600000000")
  local delay = base
  if kind == 1 then
    delay = base * run.attempt
  elseif kind == 2 then
    delay = base * 2 ^ math.min(run.attempt - 1, 40)
  end
  delay = math.min(delay, cap)
  -- Full jitter, as in a worker. Scripts get the same random numbers each time
  -- unless they are seeded; one seed a call, so that jobs lost together part.
  if (option_of(head, "j") or tonumber(jitter or "1")) ~= 0 then
    if not is_seeded then math.randomseed(now % 2147483647) end
    is_seeded = true
    delay = math.floor(delay * math.random())
  end
  return most, delay, option_of(head, "r") or 300000000
end
local function recover(i, id, dead_max)
  local line = redis.call("HGET", runs_key, id)
  local run = line and read_run(line)
  if not run then
    -- All that says how it came here is lost: it is on its first attempt.
    local record = redis.call("HGET", jobs_key, id)
    local since = int(now)
    run = { worker = "-", attempt = 1, losses = 0, flags = 0, started = "0" }
    run.lane, run.score, run.enqueued = lane_name(i), since, since
    run.task = record and task_of(head_of(record)) or "?"
  end
  run.fence = "0"
  bump(i, run.task, "lost_leases", 1)
  note(id, run, "worker lost", "")
  run.losses = run.losses + 1
  local most, delay, keep = crash_policy(id, run)
  if run.is_cancelled then
    redis.call("ZREM", leases_key(i), id)
    finish(i, id, "cancelled", run, keep, "")
  elseif run.attempt >= most then
    redis.call("ZREM", leases_key(i), id)
    finish(i, id, "dead", run, 0, "!worker lost", dead_max)
  elseif run.losses == 1 then
    back_to_front(i, id, run)
  else
    bump(i, run.task, "retried", 1)
    back_later(i, id, run, now + delay)
  end
end
