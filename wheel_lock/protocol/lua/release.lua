-- flags: allow-oom
-- Release one exclusive lock, only where the token still matches.
-- KEYS: name.  ARGV: token.
-- Reply: 1 (released), 0 (gone), -1 (another's token).
local value = redis.pcall('get', KEYS[1])
if value == ARGV[1] then
  redis.call('del', KEYS[1])
  return 1
end
if type(value) == 'table' and not string.find(tostring(value.err), 'WRONGTYPE', 1, true) then return value end
if value then return -1 end
return 0
