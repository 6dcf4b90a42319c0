-- The ledger gathers the jobs that end in a call, so that they are written and
-- erased in few commands, in chunks that unpack can take: kept (id, outcome line)
-- with ends (until when, id), and gone, of which nothing stays.
local kept, ends, gone = {}, {}, {}
local function flush_ended()
  for from = 1, #kept, 1000 do
    local to = math.min(from + 999, #kept)
    redis.call("HSET", outcomes_key, unpack(kept, from, to))
    redis.call("ZADD", ended_key, unpack(ends, from, to))
    local ids = {}
    for j = from, to, 2 do
      ids[#ids + 1] = kept[j]
    end
    redis.call("HDEL", runs_key, unpack(ids))
  end
  for from = 1, #gone, 1000 do
    local to = math.min(from + 999, #gone)
    redis.call("HDEL", jobs_key, unpack(gone, from, to))
    redis.call("HDEL", runs_key, unpack(gone, from, to))
  end
end
