-- flags:
-- Acquire one exclusive lock and draw its fence: a number that grows with every grant of the name.
-- KEYS: name, fence key.  ARGV: token, ttl in ms, ttl of the fence key in ms, '1' where nobody else has this token.
-- Reply: the fence, or a list of one: the holder's remaining time in ms, -1 where it does not expire.
-- The fence is max(last + 1, server time in microseconds), so it outlives the loss of its own key.
-- The fence comes first: if its key is of no use nothing must have been granted.
local last = tonumber(redis.call('get', KEYS[2]) or '0')
if not last then return redis.error_reply('ERR the fence key of this lock holds something else than a number') end
if not redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  if ARGV[4] ~= '1' or redis.pcall('get', KEYS[1]) ~= ARGV[1] then return {redis.call('pttl', KEYS[1])} end
  -- An earlier try of this very token was granted and its reply was lost.
  redis.call('pexpire', KEYS[1], ARGV[2])
end
local time = redis.call('time')
local fence = math.max(last + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
redis.call('set', KEYS[2], string.format('%.0f', fence), 'PX', ARGV[3])
return fence
