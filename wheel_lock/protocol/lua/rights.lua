-- flags: no-writes,allow-oom,allow-stale,allow-cross-slot-keys
-- Try which commands the user may not call, without any effect: with arguments that fail, or do nothing to a key that does
-- not exist. (redis.acl_check_cmd tells less: whether it is the command or the key; and without a key it can crash Redis 7.0.)
-- KEYS: none, but where a service wants one.  ARGV: a key that does not exist, then the commands.
-- Reply: the list of those.
local key, out = ARGV[1], {}
local arguments = {
  time = {},
  set = {key, '', 'x'},
  pexpire = {key, 'x'},
  hset = {key, 'f', 'v', 'f'},
  hexists = {key, 'f'},
  zadd = {key, 'x', 'm'},
  zrem = {key, 'm'},
  zscore = {key, 'm'},
  zcount = {key, 0, 0},
  zrange = {key, 0, 0},
  zrangebyscore = {key, 0, 0},
  zremrangebyscore = {key, 0, 0},
}
local function denied(text)
  return string.find(text, "can't run this command", 1, true) or string.find(text, 'no permissions to run', 1, true)
end
for i = 2, #ARGV do
  local reply = redis.pcall(ARGV[i], unpack(arguments[ARGV[i]] or {key}))
  if type(reply) == 'table' and denied(tostring(reply.err)) then out[#out + 1] = ARGV[i] end
end
return out
