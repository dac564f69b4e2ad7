-- flags:
-- Acquire a read-write lock for writing: granted unless it is held, or it is the readers' turn. A waiting writer leaves a
-- mark, which keeps new readers out and expires by itself.
-- KEYS: name, and a fence key if a fence is requested.
-- ARGV: member, ttl in ms, ttl of the mark of a waiting writer in ms (0: it does not wait), ttl of the fence key in ms.
-- Reply: the fence or 0 (granted), or a list: when the obstacle will have expired, in ms from now, -1 if never; and the
-- key's type if that is another one.
-- include: held
-- include: number
-- include: fence
-- include: unfit
-- include: holders
local name, member, ttl, wait_ttl = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local intent = waiter('i', member)
local fence, problem = 0, nil
if KEYS[2] then
  fence, problem = draw_fence(KEYS[2])
  if not fence then return problem end
end
problem = unfit(name)
if problem then return problem end
purge(name)
-- This member exists already: an earlier attempt of this lease was granted, and its reply was lost.
if not redis.call('zscore', name, member) then
  local until_ms = 0
  local others = redis.call('zrangebyscore', name, '-inf', '(0', 'WITHSCORES')
  for i = 1, #others, 2 do
    local what = string.sub(others[i], 1, 1)
    if what == 'w' or what == 't' then until_ms = math.max(until_ms, -tonumber(others[i + 1])) end
  end
  local last = redis.call('zrange', name, -1, -1, 'WITHSCORES')
  if last[2] then until_ms = math.max(until_ms, tonumber(last[2])) end
  if until_ms > 0 then
    if wait_ttl > 0 then enter(name, -1, intent, wait_ttl) end
    return {until_ms - now}
  end
end
if KEYS[2] then keep_fence(KEYS[2], fence, ARGV[4]) end
enter(name, -1, member, ttl)
redis.call('zrem', name, intent)
return fence
