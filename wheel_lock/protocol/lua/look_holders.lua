-- flags: allow-oom
-- Count the holders in a sorted set, and find one of them.
-- KEYS: name, and of a semaphore the key that holds its number of permits.  ARGV: member, or '' for none.
-- Reply: a list: the number of shared holders, of exclusive ones, whether the member exists, and the number of permits or -1.
-- include: held
-- include: holders
-- include: number
-- include: permits
local name, alone = KEYS[1], 0
-- The key has another type, so the lock cannot be acquired.
if type(redis.pcall('zcard', name)) == 'table' then return {2147483647, 1, 0, -1} end
local others = redis.call('zrangebyscore', name, '-inf', '(' .. -now)
for i = 1, #others do
  if string.sub(others[i], 1, 1) == 'w' then alone = alone + 1 end
end
local mine = math.abs(tonumber(redis.call('zscore', name, ARGV[1]) or '0')) > now
local permits, problem
if KEYS[2] then permits, problem = permits_of(KEYS[2]) end
if problem then return problem end
return {redis.call('zcount', name, '(' .. now, '+inf'), alone, mine and 1 or 0, permits or -1}
