-- int: a number as decimal text. Needed since `..` and tostring keep 14 digits
-- and a microsecond instant has 16.
local function int(n)
  return string.format("%.0f", n)
end
