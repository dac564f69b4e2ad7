-- flags:
-- Acquire a read-write lock for reading: granted unless a writer holds it, or waits outside of a readers' turn.
-- KEYS: name.  ARGV: member, ttl in ms, ttl of the mark of a waiting reader in ms (0: it does not wait).
-- Reply: 0 (granted), or a list: when the obstacle will have expired, in ms from now, -1 if never; and the key's
-- type if that is another one.
-- include: held
-- include: unfit
-- include: holders
local name, member, ttl, wait_ttl = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
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
-- This member exists already: an earlier attempt of this lease was granted, and its reply was lost.
local until_ms = math.max(held, waits)
if until_ms > 0 and not redis.call('zscore', name, member) then
  if wait_ttl > 0 then enter(name, -1, waiter('q', member), wait_ttl) end
  return {until_ms - now}
end
enter(name, 1, member, ttl)
redis.call('zrem', name, waiter('q', member))
return 0
