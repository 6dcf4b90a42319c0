-- lanes: read the version and effective settings of all lanes.
-- FLAGS   no-writes
-- KEYS    state lanes overrides tasks sizing
-- ARGV    task
-- RETURNS {"ok", version, config, {name json...}, {name json...}, task line, {name json...}}:
--         the declarations, what operators set, the published line of one task, and the
--         decisions on automatic reserves
-- COST    O(lanes)
return {
  "ok",
  redis.call("HGET", state_key, "version") or "0",
  redis.call("HGET", state_key, "config") or '{"lanes":{}}',
  redis.call("HGETALL", lanes_key),
  redis.call("HGETALL", overrides_key),
  redis.call("HGET", tasks_key, task) or "",
  redis.call("HGETALL", sizing_key),
}
