-- head_of: the part of a record that Lua reads: task and options, up to the
-- first newline. What follows is the producer's payload, opaque to scripts. A
-- record without a newline was not written by laneq: its task is "?".
local function head_of(record)
  local stop = string.find(record, "\n", 1, true)
  return stop and string.sub(record, 1, stop - 1) or "?"
end
local function task_of(head)
  return string.match(head, "^[^\t]*")
end
local function option_of(head, letter)
  local text = string.match(head, "\t" .. letter .. "=(%d+)")
  return text and tonumber(text)
end
