-- @include head
-- ready_of: when a waiting job became ready: its score, unless it has a boost or shares a
-- fair lane. A large record is not read for that.
local function ready_of(id, score)
  if redis.call("HSTRLEN", jobs_key, id) > 65536 then return score end
  local record = redis.call("HGET", jobs_key, id)
  local head = record and head_of(record) or ""
  return option_of(head, "y") or score + (option_of(head, "b") or 0)
end
