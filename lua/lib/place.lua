-- @include clock
-- @include free_slot
-- place: the score of a job that is ready since `at`: that instant, or the first
-- after it that no job of the lane has. It may lie past the last tick, which then
-- follows, so that no later job gets it; but for a place in a fair lane, which is
-- no instant (lib/fair.lua).
local function place(i, at)
  local score = free_from(waiting_key(i), at)
  if score > tick and at <= tick then tick = score end
  return score
end
