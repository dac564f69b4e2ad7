-- flags: allow-oom
-- Change the time-to-live of one reentrant lock, only where the holder's field is still there.
-- KEYS: name.  ARGV: field, time in ms, '1' to replace the time-to-live or '0' to add to it.
-- Reply: the new time-to-live in ms, 0 (gone), -1 (another's).
local mine = redis.pcall('hexists', KEYS[1], ARGV[1])
if type(mine) == 'table' and not string.find(tostring(mine.err), 'WRONGTYPE', 1, true) then return mine end
if mine ~= 1 then return -redis.call('exists', KEYS[1]) end
local ttl = tonumber(ARGV[2])
if ARGV[3] == '0' then ttl = ttl + math.max(redis.call('pttl', KEYS[1]), 0) end
if ttl > 4000000000000 then return redis.error_reply('ERR the lock would last for longer than 126 years') end
redis.call('pexpire', KEYS[1], string.format('%.0f', ttl))
return ttl
