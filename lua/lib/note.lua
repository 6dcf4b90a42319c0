-- @include text
-- note: append an ended attempt to the job's history. Entries are length:entry,
-- each "attempt started ended worker outcome", newline, opaque error. The
-- oldest go when there are more than 64 KB, so that no job grows without bound.
local function note(id, run, outcome, body)
  local entry = table.concat({ run.attempt, run.started, int(now), run.worker, outcome }, " ")
  entry = entry .. "\n" .. body
  local past = redis.call("HGET", history_key, id) or ""
  while #past > 65536 do
    local size = string.match(past, "^(%d+):")
    past = size and string.sub(past, #size + 2 + tonumber(size)) or ""
  end
  redis.call("HSET", history_key, id, past .. #entry .. ":" .. entry)
  if run.flags < 4 then run.flags = run.flags + 4 end
end
