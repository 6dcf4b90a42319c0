-- end_tokens: at the very end of a script, put the tokens of the lanes that were armed.
for i = 1, lanes_n do
  if armed[i] and redis.call("LLEN", wake_key(i)) == 0 then
    redis.call("LPUSH", wake_key(i), "1")
  end
end
