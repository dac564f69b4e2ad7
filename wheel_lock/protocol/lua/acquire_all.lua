-- flags: allow-cross-slot-keys
-- Acquire several exclusive locks, all of them or none.
-- KEYS: none.  ARGV: ttl in ms, then name and token of each lease.
-- Reply: 0 (granted), or a list of two: the 1-based index of the first that another holds, and his remaining time in ms.
-- One lease: ARGV[1], KEYS[1], ARGV[2]
local ttl = ARGV[1]
for i = 2, #ARGV, 2 do
  local value = redis.pcall('get', ARGV[i])
  if type(value) == 'table' and not string.find(tostring(value.err), 'WRONGTYPE', 1, true) then return value end
  -- Our own token there is an earlier try of this very call, whose reply was lost.
  if value and value ~= ARGV[i + 1] then return {i / 2, redis.call('pttl', ARGV[i])} end
end
for i = 2, #ARGV, 2 do redis.call('set', ARGV[i], ARGV[i + 1], 'PX', ttl) end
return 0
