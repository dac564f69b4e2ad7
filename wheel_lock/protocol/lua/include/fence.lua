-- The next fence: max(last + 1, server time in microseconds), so that it outlives the loss of its own key.
-- It is drawn before anything is granted: if its key is of no use nothing must have been.
-- The last fence, 0 where there is none, or nil and the error. The error does not name the key: its meaning is read
-- from its text, which must not contain a user's name.
local function last_fence(key)
  local text = redis.pcall('get', key) or '0'
  if type(text) == 'table' and not is_of_other_type(text) then return nil, text end
  local last = whole(text, 9007199254740990)
  if last then return last end
  return nil, redis.error_reply('ERR the fence key of this lock holds no fence, or one after which there can be no larger one; docs/design.md (Fence) says what to do')
end
local function draw_fence(key)
  local last, problem = last_fence(key)
  if not last then return nil, problem end
  local time = redis.call('time')
  return math.max(last + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
end
-- The fence of a try whose lease is there already: the last one, for that stands as long as the lease does. So a try that comes
-- twice, however late, leaves the fence as its holder knows it. (`drawn`, where the key has expired meanwhile.)
local function same_fence(key, drawn)
  local last = last_fence(key)
  return last > 0 and last or drawn
end
local function keep_fence(key, fence, ttl)
  redis.call('set', key, string.format('%.0f', fence), 'PX', ttl)
end
