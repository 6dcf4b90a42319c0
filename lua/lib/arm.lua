-- arm: put the lane's wake-up token, of which there is at most one. A blocked
-- worker gets it when this script ends; with nobody blocked it waits in the
-- list for the next that listens, so an enqueue between an empty claim and the
-- block is not lost. It is only a hint: whoever pops it claims, and each claim
-- arms again what it leaves behind.
local function arm(i)
  if redis.call("LLEN", wake_key(i)) == 0 then
    redis.call("LPUSH", wake_key(i), "1")
  end
end
