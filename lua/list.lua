-- list: a page of ids of one lane in one state, in order.
-- FLAGS   no-writes
-- KEYS    place
-- ARGV    from:int upto:int newest_first:int
-- RETURNS {"ok", total, id score ...}
-- COST    O(log N + page), a page is at most 1,000
upto = math.min(upto, from + 999)
local rows
if newest_first == 1 then
  rows = redis.call("ZREVRANGE", place_key, from, upto, "WITHSCORES")
else
  rows = redis.call("ZRANGE", place_key, from, upto, "WITHSCORES")
end
return { "ok", redis.call("ZCARD", place_key), unpack(rows) }
