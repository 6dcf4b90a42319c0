-- @include text
-- @include fleet
-- tally: make the sums of the fleet anew, for the lanes that have a reserve now.
-- Without any, nothing of the fleet is kept but when the next start of a lane
-- with a rate is due.
local function tally(reserved)
  local sums, gone = {}, {}
  for _, name in ipairs(reserved) do
    sums[name] = { 0, 0 }
  end
  local fleet = redis.call("HGETALL", fleet_key)
  for j = 1, #fleet, 2 do
    local field = fleet[j]
    local is_mark = field == "tight" or field == "deaf"
    if string.sub(field, 1, 7) == "worker:" then
      local slots, free, names = read_line(fleet[j + 1])
      if #reserved == 0 then gone[#gone + 1] = field end
      for name, sum in pairs(sums) do
        if has_name(names, name) then
          sum[1], sum[2] = sum[1] + slots, sum[2] + free
        end
      end
    elseif string.sub(field, 1, 4) ~= "tat:" and (not is_mark or #reserved == 0) then
      gone[#gone + 1] = field
    end
  end
  for from = 1, #gone, 1000 do
    redis.call("HDEL", fleet_key, unpack(gone, from, math.min(from + 999, #gone)))
  end
  for name, sum in pairs(sums) do
    redis.call("HSET", fleet_key, "slots:" .. name, int(sum[1]), "free:" .. name, int(sum[2]))
  end
end
