-- why: read where a job stands, and what its lane, its task and the lanes beside it have.
-- FLAGS   no-writes
-- KEYS    state jobs runs task_counts fleet parked | waiting* scheduled* leases*
-- ARGV    id
-- RETURNS {"ok", now, {place lane ahead score until task}, {most running parked is_parked before}, row...}
--         place: waiting, scheduled, running or none; lane counted from 1; ahead: jobs
--         of the lane that come before it in that place; until: when its lease ends, "" without
--         most: what the task's max_running is, -1 for none; running and parked: jobs of the
--         task; is_parked: whether it is one of these; before: how many came before it, -1
--         where that is not known
--         row, of each lane: waiting running head_score slots free next_start
--         head_score: of the first job that waits, "" for none; slots, free: of the live workers
--         that serve it, noted while it has a reserve over the fleet, "" otherwise;
--         next_start: when its rate lets the next one start, "" without
-- COST    O(lanes + log N)
-- @include clock
-- @include head
-- @include lane_name
start_clock(tonumber(redis.call("HGET", state_key, "clock") or "0"))
local place, lane, ahead, score, ends = "none", 0, 0, "0", ""
local record = redis.call("HGET", jobs_key, id)
local head = record and head_of(record) or ""
local task = task_of(head)
if task == "" then
  local line = redis.call("HGET", runs_key, id)
  task = line and string.match(line, "^%S+ %S+ %S+ %d+ %d+ %d+ %d+ %d+ %d (.*)$") or ""
end
for i = 1, lanes_n do
  local at = redis.call("ZSCORE", waiting_key(i), id)
  if at then
    place, lane, score = "waiting", i, int(tonumber(at))
    ahead = redis.call("ZRANK", waiting_key(i), id)
    break
  end
  at = redis.call("ZSCORE", scheduled_key(i), id)
  if at then
    place, lane, score = "scheduled", i, int(tonumber(at))
    ahead = redis.call("ZRANK", scheduled_key(i), id)
    -- One that is due and was not taken in yet is told as it will be.
    if tonumber(at) <= now then
      place = "waiting"
      score = int(tonumber(at) - (option_of(head, "b") or 0))
      ahead = redis.call("ZCOUNT", waiting_key(i), "-inf", "(" .. score)
    end
    break
  end
  at = redis.call("ZSCORE", leases_key(i), id)
  if at then
    place, lane, ends = "running", i, int(tonumber(at))
    break
  end
end
-- What the task has, as lib/parking.lua tells it.
local capped = cjson.decode(redis.call("HGET", state_key, "capped") or "{}")
local most, running, parked, is_parked, before = capped[task] or -1, 0, 0, 0, -1
if capped[task] then
  local from, to = "[" .. task .. "\t", "(" .. task .. "\n"
  local counts = redis.call(
    "HMGET", task_counts_key, task .. "\tstarted", task .. "\tsucceeded",
    task .. "\tfailed_attempts", task .. "\tlost_leases", task .. "\thanded_back",
    task .. "\tstopped"
  )
  running = tonumber(counts[1] or "0")
  for j = 2, 6 do
    running = running - tonumber(counts[j] or "0")
  end
  parked = redis.call("ZLEXCOUNT", parked_key, from, to)
  if place == "scheduled" and parked > 0 then
    -- Its line by id has the place that it will have again, and until when it was set aside:
    -- one that is scheduled for another instant is so for another reason.
    local from_id, to_id = "[\t" .. id .. "\t", "(\t" .. id .. "\n"
    local note = redis.call("ZRANGEBYLEX", parked_key, from_id, to_id, "LIMIT", 0, 1)[1]
    local at, due = string.match(note or "", "\t(%d+)\t(%d+)$")
    if due == score then
      is_parked, score = 1, at
      before = redis.call("ZLEXCOUNT", parked_key, from, "(" .. task .. "\t" .. at .. "\t")
    end
  end
end
local reply = {
  "ok",
  int(now),
  { place, lane, ahead, score, ends, task },
  { most, running, parked, is_parked, before },
}
for i = 1, lanes_n do
  local name = lane_name(i)
  local first = redis.call("ZRANGE", waiting_key(i), 0, 0, "WITHSCORES")
  local of_fleet =
    redis.call("HMGET", fleet_key, "slots:" .. name, "free:" .. name, "tat:" .. name)
  local due = redis.call("ZCOUNT", scheduled_key(i), "-inf", int(now))
  reply[#reply + 1] = {
    redis.call("ZCARD", waiting_key(i)) + due,
    redis.call("ZCARD", leases_key(i)),
    first[2] and int(tonumber(first[2])) or "",
    of_fleet[1] or "",
    of_fleet[2] or "",
    of_fleet[3] or "",
  }
end
return reply
