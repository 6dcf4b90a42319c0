-- Lua as Redis runs it: 5.1, without io, os and require.
std = "lua51"
read_globals = { "redis", "KEYS", "ARGV", "cjson", "server" }
max_line_length = false
-- Each script binds every key and argument of its header, used or not.
unused = false
-- The names of a spliced fragment may shadow an argument that the script has bound.
ignore = { "431", "432" }
