-- flags: allow-oom
-- Release one reentrant lock, only where the holder's field is still there, and wake its waiters.
-- KEYS: name.  ARGV: field, wake-up channel or '' to wake none.
-- Reply: 1 plus the number of subscribers that were woken (released), 0 (gone), -1 (another's).
local mine = redis.pcall('hexists', KEYS[1], ARGV[1])
if mine == 1 then
  redis.call('del', KEYS[1])
  if ARGV[2] == '' then return 1 end
  -- A user without the right to publish can release nevertheless: waiters then poll.
  local woken = redis.pcall('publish', ARGV[2], '0')
  return 1 + (tonumber(woken) or 0)
end
if type(mine) == 'table' and not string.find(tostring(mine.err), 'WRONGTYPE', 1, true) then return mine end
return -redis.call('exists', KEYS[1])
