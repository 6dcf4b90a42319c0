-- task_counts: read the event counts of all tasks.
-- FLAGS   no-writes
-- KEYS    task_counts
-- RETURNS {"ok", {field n ...}}; field: task, tab, event
-- COST    O(tasks × events), bounded by the hash's own cap
return { "ok", redis.call("HGETALL", task_counts_key) }
