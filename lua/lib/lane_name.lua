-- lane_name: the name of lane i, out of its key. The key of the state begins alike and ends in
-- "state", five letters; this one goes on with "waiting:", eight, and the name.
local function lane_name(i)
  return string.sub(waiting_key(i), #state_key + 4)
end
