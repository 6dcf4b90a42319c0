-- spread: add up histogram slices.
-- FLAGS   no-writes
-- KEYS    | slice*
-- RETURNS {"ok", field n...}
-- COST    O(slices × buckets)
local sums = {}
for i = 1, lanes_n do
  local row = redis.call("HGETALL", slice_key(i))
  for j = 1, #row, 2 do
    sums[row[j]] = (sums[row[j]] or 0) + tonumber(row[j + 1])
  end
end
local reply = { "ok" }
for field, n in pairs(sums) do
  reply[#reply + 1] = field
  reply[#reply + 1] = n
end
return reply
