-- flags: allow-oom
-- Change the time-to-live of one lease that is a member of a sorted set, only where it has not expired.
-- KEYS: name.  ARGV: member, time in ms, '1' to replace the time-to-live or '0' to add to it, and the longest
-- time-to-live in ms.
-- Reply: the new time-to-live in ms, 0 (gone), -1 (the key has another type), -2 (it would be too long, and is unchanged).
-- include: holders
local score = redis.pcall('zscore', KEYS[1], ARGV[1])
if type(score) == 'table' then
  if string.find(tostring(score.err), 'WRONGTYPE', 1, true) then return -1 end
  return score
end
score = tonumber(score or '0')
if math.abs(score) <= now then return 0 end
local ttl = tonumber(ARGV[2])
if ARGV[3] == '0' then ttl = ttl + math.abs(score) - now end
if ttl > tonumber(ARGV[4]) then return -2 end
-- The key first: if that is refused, no member outlasts the key.
prolong(redis.call, KEYS[1], string.format('%.0f', ttl))
redis.call('zadd', KEYS[1], score > 0 and now + ttl or -(now + ttl), ARGV[1])
return ttl
