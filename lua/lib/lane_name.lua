-- lane_name: the name of lane i, out of its key: what stands where "state" does is "waiting:".
local function lane_name(i)
  return string.sub(waiting_key(i), #state_key + 4)
end
