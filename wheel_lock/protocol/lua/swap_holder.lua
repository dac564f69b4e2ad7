-- flags: allow-oom
-- Replace one member of a sorted set by another, without a gap: a writer becomes a reader.
-- KEYS: name.  ARGV: the old member, the new one, its ttl in ms, wake-up channel of shared waiters.
-- Reply: 1 (done), 0 (gone), -1 (the key has another type).
-- include: holders
-- include: turns
local name, old, new, ttl = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local score = redis.pcall('zscore', name, old)
if type(score) == 'table' then
  if string.find(tostring(score.err), 'WRONGTYPE', 1, true) then return -1 end
  return score
end
-- The new member exists: an earlier attempt of this call succeeded, and its reply was lost.
local done = redis.call('zscore', name, new)
if math.abs(tonumber(done or score or '0')) <= now then return 0 end
-- Added before the other is removed: a key that is empty for a moment disappears during a slot migration.
enter(name, 1, new, ttl)
if not done then
  redis.call('zrem', name, old)
  pass_on(name)
end
redis.pcall('publish', ARGV[4], '0')
return 1
