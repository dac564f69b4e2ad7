-- The next fence: max(last + 1, server time in microseconds), so that it outlives the loss of its own key.
-- It is drawn before anything is granted: if its key is of no use nothing must have been.
local function draw_fence(key)
  local last = tonumber(redis.call('get', key) or '0')
  if not last or not (last < 9007199254740992) then return nil, redis.error_reply('ERR the fence key of this lock holds something else than a fence') end
  local time = redis.call('time')
  return math.max(last + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
end
local function keep_fence(key, fence, ttl)
  redis.call('set', key, string.format('%.0f', fence), 'PX', ttl)
end
