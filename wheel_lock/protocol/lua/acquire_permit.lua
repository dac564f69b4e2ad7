-- flags:
-- Acquire one permit of a semaphore, if fewer are held than there are.
-- KEYS: name, the key that holds the number of permits where somebody has set it.
-- ARGV: member, ttl in ms, the number of permits where nobody has.
-- Reply: 0 (granted), or a list: when as many will have expired as must, in ms from now, -1 if none will; or of
-- another key the time that it has left, -1 where it does not expire, and its type.
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
-- A member of this very name is an earlier try of the same lease: it was granted and its reply was lost.
if not redis.call('zscore', name, member) then
  local held = redis.call('zcard', name)
  if held >= permits or redis.call('zcount', name, '-inf', '(0') > 0 then
    -- Where there are fewer permits than there were, more than one has to expire.
    local rank = math.max(held - permits, 0)
    local last = redis.call('zrange', name, rank, rank, 'WITHSCORES')
    return {math.max(tonumber(last[2] or -1) - now, -1)}
  end
end
enter(name, 1, member, ttl)
return 0
