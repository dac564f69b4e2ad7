-- flags: allow-oom
-- Write the fence that a quorum proposes, the largest that its masters have drawn, only where the token still matches.
-- KEYS: name, fence key.  ARGV: token, fence, ttl of the fence key in ms.
-- Reply: 1 (written), 0 (gone), -1 (another's token), -2 (a larger one is there, and is unchanged).
-- include: held
-- include: number
-- include: fence
local value = redis.pcall('get', KEYS[1])
if type(value) == 'table' and not is_of_other_type(value) then return value end
if value ~= ARGV[1] then return value and -1 or 0 end
local last, problem = last_fence(KEYS[2])
if problem then return problem end
local fence = tonumber(ARGV[2])
if last > fence then return -2 end
keep_fence(KEYS[2], fence, ARGV[3])
return 1
