-- probe: try every command that an enqueue, a claim and an outcome are made of.
-- FLAGS   allow-oom
-- KEYS    probe
-- RETURNS {"ok", {error...}}: what the server refused, NOPERM say
-- COST    O(1)
-- KEEPS   no other key is touched, and this one is gone at the end
--
-- A job cannot be sent through the lanes to see whether they work: it would be counted
-- and seen, and would wait behind others. So `laneq health` asks the real scripts for no
-- job, which shows that the server takes their writes, and has this one show that the
-- user may send their commands. A test compares the two lists.
local refused = {}
local function try(...)
  local answer = redis.pcall(...)
  if type(answer) == "table" and answer.err then refused[#refused + 1] = answer.err end
end
try("TIME")
-- First a text with a life: whatever is refused below, nothing stays for ever.
try("SET", probe_key, "1", "EX", 60)
try("GET", probe_key)
try("EXISTS", probe_key)
try("DEL", probe_key)
try("HSETNX", probe_key, "id", "record")
try("EXPIRE", probe_key, 60)
try("HSET", probe_key, "n", 0)
try("HINCRBY", probe_key, "n", 1)
try("HGET", probe_key, "id")
try("HMGET", probe_key, "id", "n")
try("HEXISTS", probe_key, "id")
try("HLEN", probe_key)
try("HDEL", probe_key, "n")
try("DEL", probe_key)
try("ZADD", probe_key, 1, "id")
try("EXPIRE", probe_key, 60)
try("ZCARD", probe_key)
try("ZCOUNT", probe_key, 0, 1)
try("ZRANGE", probe_key, 0, 0, "WITHSCORES")
try("ZRANGEBYSCORE", probe_key, "-inf", 1, "LIMIT", 0, 1)
try("ZSCORE", probe_key, "id")
try("ZREM", probe_key, "id")
try("DEL", probe_key)
try("LPUSH", probe_key, "1")
try("EXPIRE", probe_key, 60)
try("LLEN", probe_key)
try("DEL", probe_key)
try("PUBLISH", probe_key, "1")
return { "ok", refused }
