-- @include head
-- mark_returned: say in the head of a job's record, by option n, that it has a run
-- line. Only few jobs come back, so a claim looks for run lines only where the
-- record says so. The payload is not touched.
local function mark_returned(id)
  local record = redis.call("HGET", jobs_key, id)
  local newline = record and string.find(record, "\n", 1, true)
  if newline and not option_of(head_of(record), "n") then
    local head, rest = string.sub(record, 1, newline - 1), string.sub(record, newline)
    redis.call("HSET", jobs_key, id, head .. "\tn=1" .. rest)
  end
end
