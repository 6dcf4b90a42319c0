-- beat: renew all leases of a worker and that it is alive, and add what it measured.
-- FLAGS   allow-oom
-- KEYS    state runs workers beats | leases* fine* coarse* counts* rates*
-- ARGV    worker_id info ttl:int
-- EACH    lease lane:int id fence lease_us:int
-- EACH    sample lane:int field n:int
-- RETURNS {"ok", now, {lost id...}, {cancel requested id...}}
-- COST    O((leases + samples) × log)
-- KEEPS   a lease that another holds, or nobody, is not renewed
--
-- Samples are histogram buckets, "w12" say: wait, run or latency, bucket 12.
-- They are kept in slices of 10 s for 6 min and of 1 min for 61 min. Every 5 s
-- the counts of a lane are noted in its ring, for rates.
-- @include clock
-- @include run
start_clock(tonumber(redis.call("HGET", state_key, "clock") or "0"))
redis.call("HSET", workers_key, worker_id, info)
redis.call("ZADD", beats_key, int(now + ttl), worker_id)
local lost, cancels = {}, {}
for from = 1, lease_n, 500 do
  local ids = {}
  local to = math.min(from + 499, lease_n)
  for j = from, to do
    ids[#ids + 1] = ARGV[lease_at + (j - 1) * lease_w + LEASE_ID]
  end
  local lines = redis.call("HMGET", runs_key, unpack(ids))
  for j = from, to do
    local at, line = lease_at + (j - 1) * lease_w, lines[j - from + 1]
    local id = ARGV[at + LEASE_ID]
    local run = line and read_run(line)
    if not run or run.fence ~= ARGV[at + LEASE_FENCE] then
      lost[#lost + 1] = id
    else
      local deadline = now + tonumber(ARGV[at + LEASE_LEASE_US])
      redis.call("ZADD", leases_key(tonumber(ARGV[at + LEASE_LANE])), "XX", int(deadline), id)
      if run.is_cancelled then cancels[#cancels + 1] = id end
    end
  end
end
local touched = {}
for j = 1, sample_n do
  local at = sample_at + (j - 1) * sample_w
  local i, field, n = tonumber(ARGV[at + SAMPLE_LANE]), ARGV[at + SAMPLE_FIELD], ARGV[at + SAMPLE_N]
  redis.call("HINCRBY", fine_key(i), field, n)
  redis.call("HINCRBY", coarse_key(i), field, n)
  touched[i] = true
end
for i in pairs(touched) do
  redis.call("EXPIRE", fine_key(i), 400)
  redis.call("EXPIRE", coarse_key(i), 3720)
end
local events = { "enqueued", "started", "succeeded", "dead", "inverted", "overtaken", "lost_leases" }
for i = 1, lanes_n do
  local last = redis.call("LINDEX", rates_key(i), -1)
  local noted = last and tonumber(string.match(last, "^%d+")) or 0
  if now - noted >= 5000000 then
    local counts = redis.call("HMGET", counts_key(i), unpack(events))
    local line = { int(now) }
    for j = 1, #events do
      line[j + 1] = counts[j] or "0"
    end
    redis.call("RPUSH", rates_key(i), table.concat(line, " "))
    redis.call("LTRIM", rates_key(i), -721, -1)
  end
end
return { "ok", int(now), lost, cancels }
