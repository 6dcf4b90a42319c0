-- The effective settings of all lanes are one JSON text in the state hash, in
-- the order in which callers list the lanes' keys:
--   {"v": version, "lanes": [[name, priority, aging per µs, aging cap, paused 0|1,
--     lease µs, dead_max, dead_age µs, reserve, max_running], ...]}
-- with -1 for no limit. A caller that has another version gets {"config"} back
-- and nothing is done, so that index i means the same lane on both sides.
local C_NAME, C_PRIORITY, C_AGING, C_CAP, C_PAUSED, C_LEASE, C_DEAD_MAX, C_DEAD_AGE =
  1, 2, 3, 4, 5, 6, 7, 8
