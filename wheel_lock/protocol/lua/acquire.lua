-- flags:
-- Acquire one exclusive lock, or return the remaining time of its holder: for waiters, and for locks that never expire.
-- KEYS: name.  ARGV: token, ttl in ms or 0 for none.
-- Reply: 0 (granted), or a list: the holder's remaining time in ms, -1 if it does not expire, and a type; see include/held.
local ttl = ARGV[2]
local granted
if ttl == '0' then
  granted = redis.call('set', KEYS[1], ARGV[1], 'NX')
else
  granted = redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ttl)
end
if granted then return 0 end
-- Only a refusal needs these functions, which Lua creates again in each call.
-- include: expiry
-- include: held
local value = redis.pcall('get', KEYS[1])
if value == ARGV[1] then
  -- An earlier attempt with this token was granted, and its reply was lost.
  if ttl ~= '0' then prolong(redis.call, KEYS[1], ttl) end
  return 0
end
return held(KEYS[1], value)
