-- step_of: how many bodies to read next, when `done` of them had `bytes` in all: at
-- first two, since each may have a mebibyte, then about as many as make one.
local function step_of(room, done, bytes)
  if done == 0 then return math.min(room, 2) end
  return math.min(room, 250, math.max(2, math.floor(1048576 * done / (bytes + done))))
end
