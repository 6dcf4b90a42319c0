-- @include text
-- @include doors
-- @include clock
-- @include head
-- @include free_slot
-- fair: where a job of a fair lane is placed. Start-time fair queueing (Goyal, Vin
-- and Cheng, SIGCOMM 1996), its tags worked out when a job becomes ready, so that
-- one sorted set orders the lane: the start tag is the greater of the lane's
-- virtual time and the finish tag of the key's last job, and the finish tag is a
-- cost later. The virtual time is the tag of the lane's head, and the present in an
-- empty lane. A key that floods the lane lays out its jobs a cost apart, whoever
-- comes then with another key is placed behind the head.
--
-- The cost is 100 µs of virtual time, divided by the key's weight: small against
-- what priorities and aging are about, as scores are compared with those of other
-- lanes. shares has the finish tags of keys that lie ahead of the virtual time.
--
-- When the job became ready is noted in its record, option y: the score no longer
-- tells.
local FAIR_COST = 100
local function fair_place(i, weights, record, boost)
  local key = string.match(head_of(record), "\tg=([^\t]*)") or ""
  local first = redis.call("ZRANGE", waiting_key(i), 0, 0, "WITHSCORES")
  local virtual = first[2] and tonumber(first[2])
  if virtual then
    local past =
      redis.call("ZRANGEBYSCORE", shares_key(i), "-inf", "(" .. int(virtual), "LIMIT", 0, 50)
    if #past > 0 then redis.call("ZREM", shares_key(i), unpack(past)) end
  else
    virtual = next_tick()
    redis.call("DEL", shares_key(i))
  end
  local finish = tonumber(redis.call("ZSCORE", shares_key(i), key) or "0")
  local start = math.max(virtual, finish)
  local score = free_from(waiting_key(i), math.ceil(start) - boost)
  -- Behind where it really stands: jobs of one key start in their order.
  finish = math.max(start, score + boost - 1) + FAIR_COST / (tonumber(weights[key]) or 1)
  redis.call("ZADD", shares_key(i), string.format("%.3f", finish), key)
  return score
end
local function with_ready(record, ready)
  local stop = string.find(record, "\n", 1, true)
  if not stop then return record end
  local head = string.gsub(string.sub(record, 1, stop - 1), "\ty=%d+", "")
  return head .. "\ty=" .. int(ready) .. string.sub(record, stop)
end
