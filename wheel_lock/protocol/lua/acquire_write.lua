-- flags:
-- Acquire a read-write lock for writing: granted unless somebody holds it, or the turn is the readers'. A writer that
-- waits leaves word of it, which holds back new readers and expires by itself.
-- KEYS: name, and a fence key where a fence is asked for.
-- ARGV: member, ttl in ms, for how long to remember that it waits in ms (0: it does not), ttl of the fence key in ms.
-- Reply: the fence or 0 (granted), or a list: when what is in the way will have expired, in ms from now, or never (-1);
-- and its type where it is no such lock.
-- include: held
-- include: number
-- include: fence
-- include: unfit
-- include: holders
local name, member, ttl, patience = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local intent = waiter('i', member)
local fence, problem = 0, nil
if KEYS[2] then
  fence, problem = draw_fence(KEYS[2])
  if not fence then return problem end
end
problem = unfit(name)
if problem then return problem end
purge(name)
-- A member of this very name is an earlier try of the same lease: it was granted and its reply was lost.
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
    if patience > 0 then enter(name, -1, intent, patience) end
    return {until_ms - now}
  end
end
if KEYS[2] then keep_fence(KEYS[2], fence, ARGV[4]) end
enter(name, -1, member, ttl)
redis.call('zrem', name, intent)
return fence
