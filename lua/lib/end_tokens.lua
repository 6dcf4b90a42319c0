-- end_tokens: at the very end of a script, put the tokens of the lanes that were armed.
-- Most often they are there already, so all are looked for at once.
local token_keys, token_n = {}, 0
for i = 1, lanes_n do
  if armed[i] then
    token_n = token_n + 1
    token_keys[token_n] = wake_key(i)
  end
end
if token_n > 0 and redis.call("EXISTS", unpack(token_keys)) < token_n then
  for i = 1, lanes_n do
    if armed[i] and (token_n == 1 or redis.call("EXISTS", wake_key(i)) == 0) then
      redis.call("LPUSH", wake_key(i), "1")
    end
  end
end
