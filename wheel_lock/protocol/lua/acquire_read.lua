-- flags:
-- Acquire a read-write lock for reading: granted unless a writer holds it, or waits while the turn is not the readers'.
-- KEYS: name.  ARGV: member, ttl in ms, for how long to remember that it waits in ms (0: it does not).
-- Reply: 0 (granted), or a list: when what is in the way will have expired, in ms from now, or never (-1); and
-- its type where it is no such lock.
-- include: held
-- include: unfit
-- include: holders
local name, member, ttl, patience = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local problem = unfit(name)
if problem then return problem end
purge(name)
local held, waits, turn = 0, 0, false
local others = redis.call('zrangebyscore', name, '-inf', '(0', 'WITHSCORES')
for i = 1, #others, 2 do
  local what, expiry = string.sub(others[i], 1, 1), -tonumber(others[i + 1])
  if what == 'w' then
    held = math.max(held, expiry)
  elseif what == 'i' then
    waits = math.max(waits, expiry)
  elseif what == 't' then
    turn = true
  end
end
if turn then waits = 0 end
-- A member of this very name is an earlier try of the same lease: it was granted and its reply was lost.
local until_ms = math.max(held, waits)
if until_ms > 0 and not redis.call('zscore', name, member) then
  if patience > 0 then enter(name, -1, waiter('q', member), patience) end
  return {until_ms - now}
end
enter(name, 1, member, ttl)
redis.call('zrem', name, waiter('q', member))
return 0
