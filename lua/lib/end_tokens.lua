-- end_tokens: at the very end of a script, put the tokens of the lanes that were armed.
-- Most often they are there already, so all are looked for at once.
local token_keys = {}
for i = 1, lanes_n do
  if armed[i] then token_keys[#token_keys + 1] = wake_key(i) end
end
if #token_keys > 0 and redis.call("EXISTS", unpack(token_keys)) < #token_keys then
  for i = 1, lanes_n do
    if armed[i] and (#token_keys == 1 or redis.call("EXISTS", wake_key(i)) == 0) then
      redis.call("LPUSH", wake_key(i), "1")
    end
  end
end
