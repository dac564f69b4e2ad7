-- flags: allow-oom
-- Take a lease over from whoever exported it: put a new token in the place of theirs, so that only one can.
-- KEYS: name.  ARGV: their token, our token, ttl in ms.
-- Reply: 1 (ours now), 0 (gone), -1 (another's token).
local value = redis.pcall('get', KEYS[1])
if type(value) == 'table' and not string.find(tostring(value.err), 'WRONGTYPE', 1, true) then return value end
-- Our own token there is an earlier try of this very call, whose reply was lost. It may have been extended since.
if value == ARGV[1] or value == ARGV[2] then
  -- (No lock lasts for 2**52 ms. Who has given the key more than SET takes must not keep it from being adopted.)
  local ttl = math.max(math.min(redis.call('pttl', KEYS[1]), 4503599627370496), tonumber(ARGV[3]))
  redis.call('set', KEYS[1], ARGV[2], 'XX', 'PX', string.format('%.0f', ttl))
  return 1
end
if value then return -1 end
return 0
