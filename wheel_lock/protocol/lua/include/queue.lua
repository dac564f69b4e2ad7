-- The queue of a fair lock: the waiters by ticket, and the expiry of each in ms by the server's clock.
local function not_waiters(looked)
  if looked and not is_of_other_type(looked) then return looked end
  return redis.error_reply('ERR the queue of this fair lock holds something else than waiters; it makes itself anew when its keys are deleted')
end
local time = redis.call('time')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- Return the first live waiter and its expiry; expired ones before it are removed. Or nil, nil and the error.
local function head(queue, alive)
  while true do
    local looked = redis.pcall('zrange', queue, 0, 0)
    if looked.err then return nil, nil, not_waiters(looked) end
    local first = looked[1]
    if not first then return nil end
    looked = redis.pcall('zscore', alive, first) or '0'
    if type(looked) == 'table' then return nil, nil, not_waiters(looked) end
    local expiry = whole(looked, 9007199254740991)
    if not expiry then return nil, nil, not_waiters() end
    if expiry > now then return first, expiry end
    redis.call('zrem', queue, first)
    redis.call('zrem', alive, first)
  end
end
