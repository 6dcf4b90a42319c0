-- tidy: put right hints, tokens and the list of workers, and bring back run-out leases.
-- FLAGS   allow-oom
-- KEYS    state jobs runs outcomes history progress ended watchers workers beats fleet tasks task_counts
-- KEYS    waiting* scheduled* leases* dead* counts* wake* rates*
-- ARGV    version:int
-- EACH    worker id
-- EACH    watcher id
-- RETURNS {"ok", more, {kind id lane did ...}}: more is 1 when there may be more such leases
-- ERRORS  config: the lanes changed, ask for them and call again
-- COST    O((lanes + leases + workers + watchers) × log N), at most 100 leases
-- @include clock
-- @include bump
-- @include arm
-- @include ledger
local next_due, watch_until
-- @include recover
-- @include unload
-- @include tally
local hints =
  redis.call("HMGET", state_key, "clock", "version", "next_due", "watch_until", "config", "watched")
if tonumber(hints[2] or "0") ~= version then return { "config" } end
start_clock(tonumber(hints[1] or "0"))
next_due, watch_until = tonumber(hints[3] or nil), tonumber(hints[4] or nil)
local limits = hints[5] and cjson.decode(hints[5]).lanes or {}
local done = {}
local function say(kind, id, lane, did)
  local n = #done
  done[n + 1], done[n + 2], done[n + 3], done[n + 4] = kind, id, lane, did
end
local room = 100
for i = 1, lanes_n do
  local lost = redis.call("ZRANGEBYSCORE", leases_key(i), "-inf", int(now), "LIMIT", 0, room)
  for _, id in ipairs(lost) do
    recover(i, id, limits[i] and limits[i][7] or -1)
    say("lease", id, lane_name(i), "brought it back: its lease had run out")
  end
  room = room - #lost
end
local first
for i = 1, lanes_n do
  local head = redis.call("ZRANGE", scheduled_key(i), 0, 0, "WITHSCORES")
  if head[2] and (not first or tonumber(head[2]) < first) then first = tonumber(head[2]) end
end
if first and (not next_due or next_due > math.max(first, now)) then
  redis.call("HSET", state_key, "next_due", int(first))
  for i = 1, lanes_n do
    arm(i)
  end
  say("hint", "", "", "next_due is when the first scheduled job is due")
end
local newest = redis.call("ZREVRANGE", watchers_key, 0, 0, "WITHSCORES")
local upto = tonumber(newest[2] or "0")
if upto > now and upto > tonumber(hints[6] or "0") then
  redis.call("HSET", state_key, "watched", int(upto))
  say("hint", "", "", "watched is as late as the last watcher")
end
for i = 1, lanes_n do
  if redis.call("LLEN", wake_key(i)) > 1 then
    redis.call("LTRIM", wake_key(i), 0, 0)
    say("wake", "", lane_name(i), "left one token")
  end
  if redis.call("LLEN", rates_key(i)) > 721 then
    redis.call("LTRIM", rates_key(i), -721, -1)
    say("bound", "", lane_name(i), "left the newest 721 notes")
  end
end
-- What the fleet has free, by the lines of its workers; one that is gone has none.
local fleet, reserved, is_off = redis.call("HGETALL", fleet_key), {}, false
for j = 1, #fleet, 2 do
  local id = string.match(fleet[j], "^worker:(.*)$")
  if id and not redis.call("ZSCORE", beats_key, id) then
    unload(id)
    say("fleet", id, "", "dropped what it had free: if it lives, its next claim says it again")
  end
end
for _, row in ipairs(limits) do
  if row[14] and row[14] > 0 and row[5] == 0 then reserved[#reserved + 1] = row[1] end
end
for _, name in ipairs(reserved) do
  local sums = redis.call("HMGET", fleet_key, "slots:" .. name, "free:" .. name)
  local slots, free = 0, 0
  for j = 1, #fleet, 2 do
    local id = string.match(fleet[j], "^worker:(.*)$")
    local line_slots, line_free, names = read_line(id and fleet[j + 1])
    if has_name(names, name) and redis.call("ZSCORE", beats_key, id) then
      slots, free = slots + line_slots, free + line_free
    end
  end
  if tonumber(sums[1] or nil) ~= slots or tonumber(sums[2] or nil) ~= free then is_off = true end
end
if is_off then
  tally(reserved)
  say("fleet", "", "", "added up anew what its workers have free")
end
for j = 1, worker_n do
  local id = ARGV[worker_at + j]
  local is_listed = redis.call("HEXISTS", workers_key, id) == 1
  local has_beat = redis.call("ZSCORE", beats_key, id)
  if is_listed and not has_beat then
    redis.call("HDEL", workers_key, id)
    say("worker", id, "", "took it off the list: if it lives, its next heartbeat lists it again")
  elseif has_beat and not is_listed then
    redis.call("ZREM", beats_key, id)
    say("worker", id, "", "dropped its heartbeat: if it lives, its next one lists it")
  end
end
for j = 1, watcher_n do
  local id = ARGV[watcher_at + j]
  local outcome = redis.call("HGET", outcomes_key, id)
  local is_there = redis.call("HEXISTS", jobs_key, id) == 1
  if (outcome or not is_there) and redis.call("ZREM", watchers_key, id) == 1 then
    redis.call("PUBLISH", string.sub(jobs_key, 1, -5) .. "ended:" .. id, outcome or "purged")
    say("watcher", id, "", "told whoever waits for it")
  end
end
-- @include end_clock
-- @include end_ledger
-- @include end_counts
-- @include end_tokens
return { "ok", room == 0 and 1 or 0, done }
