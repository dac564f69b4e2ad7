-- flags: allow-oom
-- Release one exclusive lock, only where the token still matches, and wake its waiters.
-- KEYS: name.  ARGV: token, wake-up channel or '' to wake none.
-- Reply: 1 plus the number of subscribers that were woken (released), 0 (gone), -1 (another's token).
local value = redis.pcall('get', KEYS[1])
if value == ARGV[1] then
  redis.call('del', KEYS[1])
  if ARGV[2] == '' then return 1 end
  -- A user without the right to publish can release nevertheless: waiters then poll.
  local woken = redis.pcall('publish', ARGV[2], '0')
  return 1 + (tonumber(woken) or 0)
end
if type(value) == 'table' and not string.find(tostring(value.err), 'WRONGTYPE', 1, true) then return value end
if value then return -1 end
return 0
