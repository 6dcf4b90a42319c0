-- ranking: lanes by the value of their heads, for a claim that has several to compare.
-- To read the head of each lane is most of what such a claim would cost, so heads are
-- read only as far as the slots that are left could need them.
--
-- ranked, from `first` to `last`: lanes whose head was read, the best first; as many as
-- there are slots left end at `nth`. No lane whose head is worth less than that one can
-- have a slot, unless one of the better ones is refused. Such lanes are set aside, most
-- of them unread; all of them are worth less than `floor`. While the best is worth as
-- much it goes before all of them, and when it is not they are looked at again.
-- (values[ranked[nth]] is nil while there are fewer: any lane may have a slot.)
read_rules()
local ranked, first, last = per_lane(), 1, 0
local nth = math.min(free, most)
local aside, aside_n, floor = {}, 0, -math.huge
local values, scores, refused = per_lane(), per_lane(), {}
-- With one slot no second head is needed.
local share = nth == 1 and 1 or math.min(math.ceil(nth / heads_n), 128) + 1
-- Whether lane i, whose head is worth as much as that of lane j, goes before it.
local function is_first(i, j)
  local a, b = rule_by[i][1], rule_by[j][1]
  if a ~= b then return a > b end
  a, b = scores[i], scores[j]
  if a ~= b then return a < b end
  return i < j
end
-- Put lane i, whose head was read, where it belongs.
local function rank(i)
  local rule, score = rule_by[i], heads[i][at[i] + 1] + 0
  local gain = rule[2] * (now - score)
  if gain > rule[3] then gain = rule[3] end
  if gain < 0 then gain = 0 end
  local value = rule[1] + gain
  values[i], scores[i] = value, score
  local enough = values[ranked[nth]]
  if enough and value < enough then
    aside_n = aside_n + 1
    aside[aside_n] = i
    if enough > floor then floor = enough end
    return
  end
  local low, high = first, last + 1
  -- Where lanes are served in turn it is the last most often.
  if low < high and values[ranked[last]] > value then low = high end
  while low < high do
    local middle = (low + high) / 2
    middle = middle - middle % 1
    local j = ranked[middle]
    local other = values[j]
    if other > value or (other == value and is_first(j, i)) then
      low = middle + 1
    else
      high = middle
    end
  end
  if first > 1 and low - first <= last - low then
    for j = first, low - 1 do
      ranked[j - 1] = ranked[j]
    end
    first, nth, low = first - 1, nth - 1, low - 1
  else
    for j = last, low, -1 do
      ranked[j + 1] = ranked[j]
    end
    last = last + 1
  end
  ranked[low] = i
end
-- Whether the head of lane i, not read yet, is worth less than `value` for certain: it is
-- below it even at its cap, or nothing in it has waited long enough. To count those costs
-- a third of reading a head.
local upto, of_value, of_rule, verdict
local function is_below(i, value)
  local rule = rule_by[i]
  if value ~= of_value or rule ~= of_rule then
    of_value, of_rule = value, rule
    local priority = rule[1]
    if value > priority + rule[3] then
      verdict = true
    elseif value <= priority or rule[2] < 1e-12 then
      verdict = false
    else
      -- What it lacks, less by more than the fractions of the values can be wrong; the last
      -- instant of those that waited long enough for that is wrong by a quarter at most.
      local lacks = value - priority - 1e-14 * (math.abs(value) + math.abs(priority))
      upto, verdict = int(math.floor(now - lacks / rule[2] + 0.5)), nil
    end
  end
  if verdict ~= nil then return verdict end
  return redis.call("ZCOUNT", waiting_key(i), "-inf", upto) == 0
end
-- Rank these lanes or set them aside.
local function look_at(some, n)
  local enough = values[ranked[nth]]
  for j = 1, n do
    local i = some[j]
    local is_unread = not heads[i]
    if is_unread and enough and is_below(i, enough) then
      aside_n = aside_n + 1
      aside[aside_n] = i
    else
      if is_unread then fetch(i, 0, share) end
      if waiting[i] then
        rank(i)
        enough = values[ranked[nth]]
      end
    end
  end
  -- What is enough grows while lanes are ranked.
  if enough and enough > floor then floor = enough end
end
-- Take the lane whose head is to start next off the ranked ones; nil where there is none.
-- It is given a slot, ranked again if more of it is left, or refused.
local function take_best()
  local best = ranked[first]
  if aside_n > 0 and (not best or values[best] < floor) then
    local again, n = aside, aside_n
    aside, aside_n, floor = {}, 0, -math.huge
    look_at(again, n)
    best = ranked[first]
  end
  if best then first = first + 1 end
  return best
end
-- No start makes room for another lane.
local function refuse(i)
  refused[i], nth = true, nth + 1
end
-- Of lanes that are alike, those that were served just now are looked at last: others
-- have waited longer, most often.
local is_late = {}
for j = 1, are_alike and outcome_n or 0 do
  is_late[ARGV[outcome_at + (j - 1) * outcome_w + OUTCOME_LANE] + 0] = true
end
local some, late, some_n, late_n = per_lane(), {}, 0, 0
for i = 1, lanes_n do
  if waiting[i] and served[i] then
    if is_late[i] then
      late_n = late_n + 1
      late[late_n] = i
    else
      some_n = some_n + 1
      some[some_n] = i
    end
  end
end
look_at(some, some_n)
look_at(late, late_n)
