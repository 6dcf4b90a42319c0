-- end_ledger: at the end of a script, write and erase the jobs that ended in it.
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
