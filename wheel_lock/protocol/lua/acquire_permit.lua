-- flags:
-- Acquire one permit of a semaphore, if fewer are held than there are.
-- KEYS: name, the key that holds the number of permits where somebody has set it.
-- ARGV: member, ttl in ms, the number of permits where nobody has.
-- Reply: 0 (granted), or a list of one: when the next permit will have expired, in ms from now, -1 if that is not enough.
-- include: holders
local name, member, ttl = KEYS[1], ARGV[1], ARGV[2]
local problem = unfit(name)
if problem then return problem end
purge(name)
-- A member of this very name is an earlier try of the same lease: it was granted and its reply was lost.
if not redis.call('zscore', name, member) then
  local permits = tonumber(redis.call('get', KEYS[2]) or ARGV[3])
  if not permits then return redis.error_reply('ERR the permits key of this semaphore holds no number') end
  local held = redis.call('zcard', name)
  if held >= permits or redis.call('zcount', name, '-inf', '(0') > 0 then
    if held > permits then return {-1} end
    local first = redis.call('zrange', name, 0, 0, 'WITHSCORES')
    return {math.max(tonumber(first[2] or -1) - now, -1)}
  end
end
redis.call('zadd', name, now + tonumber(ttl), member)
keep(name, ttl)
return 0
