-- flags: allow-oom
-- Take over an exported lease: replace the exporter's token by a new one, so that only one adopter succeeds.
-- KEYS: name, and the fence key if the lease has a fence.  ARGV: the exporter's token, the new token, ttl in ms, and if the
-- lease has a fence that fence and the ttl of its key in ms.
-- Reply: 1 (adopted), 0 (gone), -1 (another token), -2 (the fence is not the one of this lease).
-- include: held
-- include: number
-- include: fence
local value = redis.pcall('get', KEYS[1])
if type(value) == 'table' then return is_of_other_type(value) and -1 or value end
if not value then return 0 end
-- The new token: an earlier attempt of this call succeeded, and its reply was lost. The lease may have been extended since.
if value ~= ARGV[1] and value ~= ARGV[2] then return -1 end
local fence = value == ARGV[1] and tonumber(ARGV[4])  -- else the earlier attempt has checked it
if fence then
  -- No other fence is drawn while the lease lasts. If the fence key has expired meanwhile, the next grant draws the server's
  -- time: a fence that is not below that could be repeated, or never be exceeded.
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
-- (No lock lasts for 2**52 ms. A key with more time-to-live than SET accepts can still be adopted.)
local ttl = math.max(math.min(redis.call('pttl', KEYS[1]), 4503599627370496), tonumber(ARGV[3]))
redis.call('set', KEYS[1], ARGV[2], 'XX', 'PX', string.format('%.0f', ttl))
return 1
