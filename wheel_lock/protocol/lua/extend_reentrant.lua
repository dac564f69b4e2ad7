-- flags: allow-oom
-- Change the time-to-live of one reentrant lock, only where the holder's field is still there.
-- KEYS: name.  ARGV: field, time in ms, '1' to replace the time-to-live or '0' to add to it, and the longest
-- time-to-live in ms.
-- Reply: the new time-to-live in ms, 0 (gone), -1 (another's), -2 (it would be too long, and is unchanged).
local mine = redis.pcall('hexists', KEYS[1], ARGV[1])
if type(mine) == 'table' and not string.find(tostring(mine.err), 'WRONGTYPE', 1, true) then return mine end
if mine ~= 1 then return -redis.call('exists', KEYS[1]) end
local ttl = tonumber(ARGV[2])
if ARGV[3] == '0' then ttl = ttl + math.max(redis.call('pttl', KEYS[1]), 0) end
if ttl > tonumber(ARGV[4]) then return -2 end
redis.call('pexpire', KEYS[1], string.format('%.0f', ttl))
return ttl
