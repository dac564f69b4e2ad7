-- The next fence: max(last + 1, server time in microseconds), so that it still grows after the loss of its key.
-- It is drawn before the grant: if its key is not usable nothing must have been granted.
-- The last fence, 0 if there is none, or nil and the error. The error does not contain the key: its text is parsed, and
-- must not contain a user's name.
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
-- The fence of an attempt whose lease exists already: the last one, which does not change while the lease lasts. So a
-- repeated attempt, however late, returns the fence that the holder has. (`drawn`, if the key has expired meanwhile.)
local function same_fence(key, drawn)
  local last = last_fence(key)
  return last > 0 and last or drawn
end
local function keep_fence(key, fence, ttl)
  redis.call('set', key, string.format('%.0f', fence), 'PX', ttl)
end
