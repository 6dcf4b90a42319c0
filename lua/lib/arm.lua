-- arm: the lane is to have a wake-up token; end_tokens puts it, at the end of the
-- script. There is at most one per lane. A blocked worker gets it when the script
-- has ended; with nobody blocked it waits in the list for the next that listens,
-- so an enqueue between an empty claim and the block is not lost. It is only a
-- hint: whoever pops it claims, and each claim arms again what it leaves behind.
-- Why at the end: of two keys that one script fills, Redis serves the one that was
-- filled first, and a claim has to ring its own worker's doorbell before any token.
local armed = {}
local function arm(i)
  armed[i] = true
end
