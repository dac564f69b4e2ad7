-- flags: allow-oom
-- Take a lease over from whoever exported it: put a new token in the place of theirs, so that only one can.
-- KEYS: name, and the fence key where the lease has a fence.  ARGV: their token, our token, ttl in ms, and where the lease has
-- a fence that one and the ttl of its key in ms.
-- Reply: 1 (ours now), 0 (gone), -1 (another's token), -2 (the fence is not the one of this lease).
-- include: held
-- include: number
-- include: fence
local value = redis.pcall('get', KEYS[1])
if type(value) == 'table' then return is_of_other_type(value) and -1 or value end
if not value then return 0 end
-- Our own token there is an earlier try of this very call, whose reply was lost. It may have been extended since.
if value ~= ARGV[1] and value ~= ARGV[2] then return -1 end
local fence = value == ARGV[1] and tonumber(ARGV[4])  -- else it was looked at then
if fence then
  -- No other fence is drawn while the lease lasts. If the fence key has expired meanwhile, the next grant draws the time:
  -- a fence that is not below that could be repeated, or never be exceeded.
  local last, problem = last_fence(KEYS[2])
  if problem then return problem end
  if last == 0 then
    local time = redis.call('time')
    if fence >= tonumber(time[1]) * 1000000 + tonumber(time[2]) then return -2 end
  elseif last ~= fence then
    return -2
  end
  keep_fence(KEYS[2], fence, ARGV[5])
end
-- (No lock lasts for 2**52 ms. A key with more time-to-live than SET accepts can be adopted all the same.)
local ttl = math.max(math.min(redis.call('pttl', KEYS[1]), 4503599627370496), tonumber(ARGV[3]))
redis.call('set', KEYS[1], ARGV[2], 'XX', 'PX', string.format('%.0f', ttl))
return 1
