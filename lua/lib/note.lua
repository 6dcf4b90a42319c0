-- @include text
-- note: append an ended attempt to the job's history. Entries are length:entry,
-- each "attempt started ended worker outcome", newline, opaque error. The
-- oldest go when there are more than 64 KB, so that no job grows without bound.
local function note(id, run, outcome, body)
  local entry = run.attempt
    .. " "
    .. run.started
    .. " "
    .. int(now)
    .. " "
    .. run.worker
    .. " "
    .. outcome
    .. "\n"
    .. body
  local past = redis.call("HGET", history_key, id) or ""
  while #past > 65536 do
    local size = string.match(past, "^(%d+):")
    past = string.sub(past, #size + 2 + tonumber(size))
  end
  redis.call("HSET", history_key, id, past .. #entry .. ":" .. entry)
end
