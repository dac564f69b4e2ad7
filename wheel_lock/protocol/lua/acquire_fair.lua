-- flags:
-- Acquire one fair lock: granted if it is free and no live waiter is before this one. A waiter is appended to the queue.
-- KEYS: name, queue, expiries of its waiters, and a fence key if a fence is requested.
-- ARGV: token, ttl in ms, the waiter's ttl in the queue in ms (0: it does not wait), wake-up channel, ttl of the fence key
-- in ms.
-- Reply: the fence or 0 (granted), or a list: the holder's remaining time in ms for the head of the queue, -1 for other
-- waiters; or that time for all, -1 if it does not expire, and a type; see include/held.
-- include: expiry
-- include: held
-- include: number
-- include: fence
-- include: queue
local name, queue, alive, token, wait_ttl = KEYS[1], KEYS[2], KEYS[3], ARGV[1], tonumber(ARGV[3])
local me = string.sub(token, 1, -23)
local fence = 0
if KEYS[4] then
  local broken
  fence, broken = draw_fence(KEYS[4])
  if not fence then return broken end
end
local value = redis.pcall('get', name)
local first, expiry, problem = head(queue, alive)
if problem then return problem end
-- The key has this token: an earlier attempt of this lease was granted, and its reply was lost.
if value == token or (not value and (not first or first == me)) then
  local left = redis.pcall('zrem', alive, me)
  if type(left) == 'table' then return not_waiters(left) end
  redis.call('zrem', queue, me)
  -- The grant comes last, so that an error before it grants nothing.
  if KEYS[4] then
    if value then fence = same_fence(KEYS[4], fence) end
    keep_fence(KEYS[4], fence, ARGV[5])
  end
  if value then
    prolong(redis.call, name, ARGV[2])
  else
    redis.call('set', name, token, 'PX', ARGV[2])
  end
  return fence
end
if wait_ttl > 0 then
  local looked = redis.pcall('zscore', alive, me)
  if type(looked) == 'table' then return not_waiters(looked) end
  local ticket = redis.call('zscore', queue, me)
  if not ticket then
    local last_ticket = whole(redis.call('zrange', queue, -1, -1, 'WITHSCORES')[2] or '0', 9007199254740990)
    if not last_ticket then return not_waiters() end
    ticket = last_ticket + 1
    first = first or me
  end
  put(queue, wait_ttl, 'zadd', ticket, me)
  put(alive, wait_ttl, 'zadd', now + wait_ttl, me)
end
if value then
  local reply = held(name, value)
  if first ~= me and not reply[2] then reply[1] = -1 end
  return reply
end
-- The lock is free, and another waiter is the head: wake it again, because its wake-up may have been lost.
redis.pcall('publish', ARGV[4], first)
return {expiry - now}
