-- pass_on: give wake-ups that a worker took and cannot use to others.
-- FLAGS   allow-oom
-- KEYS    | wake*
-- RETURNS {"ok"}
-- COST    O(lanes given)
-- KEEPS   a lane has one token at most, also where it was armed meanwhile
-- @include arm
for i = 1, lanes_n do
  arm(i)
end
-- @include end_tokens
return { "ok" }
