-- int: a number as decimal text. Needed since `..` and tostring keep 14 digits
-- and a microsecond instant has 16. (%d takes a 64-bit whole number here, and is
-- several times as fast as %.0f.)
local function int(n)
  return string.format("%d", n)
end
