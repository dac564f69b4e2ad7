-- flags: no-writes,allow-oom,allow-stale,allow-cross-slot-keys
-- Find the commands that the user has no right to call, without side effects: calls with arguments that fail, or do nothing
-- to a missing key. (redis.acl_check_cmd does not distinguish command and key, and can crash Redis 7.0 without a key.)
-- KEYS: none, or one if the service requires it.  ARGV: a key that does not exist, then the commands.
-- Reply: the list of these commands.
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
