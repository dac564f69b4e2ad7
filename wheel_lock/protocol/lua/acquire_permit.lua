-- flags:
-- Acquire one permit of a semaphore, if fewer are held than there are.
-- KEYS: name, the key that holds the number of permits if it has been set.
-- ARGV: member, ttl in ms, the number of permits if it has not been set.
-- Reply: 0 (granted), or a list: when enough permits will have expired, in ms from now, -1 if they never will; or, for
-- a key of another type, its remaining time in ms, -1 if it does not expire, and its type.
-- include: held
-- include: unfit
-- include: number
-- include: permits
-- include: holders
local name, member, ttl = KEYS[1], ARGV[1], ARGV[2]
local problem = unfit(name)
if problem then return problem end
local permits
permits, problem = permits_of(KEYS[2], ARGV[3])
if problem then return problem end
purge(name)
-- This member exists already: an earlier attempt of this lease was granted, and its reply was lost.
if not redis.call('zscore', name, member) then
  local held = redis.call('zcard', name)
  if held >= permits or redis.call('zcount', name, '-inf', '(0') > 0 then
    -- If the number of permits was reduced, more than one has to expire.
    local rank = math.max(held - permits, 0)
    local last = redis.call('zrange', name, rank, rank, 'WITHSCORES')
    return {math.max(tonumber(last[2] or -1) - now, -1)}
  end
end
enter(name, 1, member, ttl)
return 0
