-- flags: allow-oom
-- Change the time-to-live of one exclusive lock, only where the token still matches.
-- KEYS: name.  ARGV: token, time in ms, '1' to replace the time-to-live or '0' to add to it, and the longest
-- time-to-live in ms.
-- Reply: the new time-to-live in ms, 0 (gone), -1 (another's token), -2 (it would be too long, and is unchanged).
local value = redis.pcall('get', KEYS[1])
if type(value) == 'table' and not string.find(tostring(value.err), 'WRONGTYPE', 1, true) then return value end
if value ~= ARGV[1] then
  if value then return -1 end
  return 0
end
local ttl = tonumber(ARGV[2])
if ARGV[3] == '0' then ttl = ttl + math.max(redis.call('pttl', KEYS[1]), 0) end
if ttl > tonumber(ARGV[4]) then return -2 end
redis.call('pexpire', KEYS[1], string.format('%.0f', ttl))
return ttl
