-- lives: read the type and the time to live of some keys.
-- FLAGS   no-writes
-- KEYS    | place*
-- RETURNS {"ok", type, ms, ...}: none and -2 for a key that is gone, -1 ms for one that stays
-- COST    O(keys), at most 1,000
local reply = { "ok" }
for i = 1, lanes_n do
  local found = redis.call("TYPE", place_key(i))
  reply[2 * i] = found.ok
  reply[2 * i + 1] = redis.call("PTTL", place_key(i))
end
return reply
