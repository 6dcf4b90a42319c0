-- fleet: what live workers have free, kept while a lane has a reserve over the fleet.
-- The fleet hash has a line per worker, `worker:ID` → "slots free ,lane,lane,", and
-- per reserved lane the sums of the workers that serve it, slots:LANE and
-- free:LANE. A line and its part of the sums change in one script, so that the
-- sums are always those of the lines.
local function line_field(worker)
  return "worker:" .. worker
end
local function read_line(line)
  local slots, free, from = string.match(line or "", "^(%d+) (%d+) (),")
  if not slots then return 0, 0, "," end
  return slots + 0, free + 0, string.sub(line, from)
end
-- Names stand in a list as ",a,b,".
local function has_name(list, name)
  return string.find(list, "," .. name .. ",", 1, true) ~= nil
end
local function without_name(list, name)
  local from, to = string.find(list, "," .. name .. ",", 1, true)
  return from and string.sub(list, 1, from) .. string.sub(list, to + 1) or list
end
