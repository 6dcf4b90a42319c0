-- end_clock: at the end of a script, keep the greatest instant that it gave out.
redis.call("HSET", state_key, "clock", int(tick))
