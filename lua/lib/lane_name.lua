-- lane_name: the name of lane i, out of its key.
local function lane_name(i)
  return string.match(waiting_key(i), "}:waiting:(.*)$")
end
