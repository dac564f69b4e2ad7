-- flags: no-writes,allow-oom
-- Inspect the key of a lock, whatever it holds. Nothing is changed, and what is read is bounded.
-- KEYS: name, and optionally the fence key, the expiries of a fair lock's waiters, and the permits key.
-- ARGV: the most holders to return, the most bytes of a value, the most marks of waiters to read in search of a writer, wake-up channels.
-- Reply: a list: the key's type ('' if unknown), its remaining time in ms, -1 or nil (it may not be read), a flat list of the holders, the number of
-- all holders, 1 if it is a sorted set of another application, the number of registered waiters or -1, the fence and the
-- permits as they are stored, the number of connections that listen for wake-ups or -1, the field `mode` of a hash, and a
-- list of the errors.
-- A holder is a value, its remaining time in ms (nil: that of the key) and its count (nil: none).
-- include: held
-- include: foreign
local most, most_bytes, most_marks = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local name, errors, page = KEYS[1], {}, 1000
-- Return a reply, or nil after an error. An error is noted, but for another type than the expected one.
local function noted(reply)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not is_of_other_type(reply) and #errors < 4 then errors[#errors + 1] = string.sub(reply.err, 1, 200) end
  return nil
end
-- Return a string that is not too long, else nil. (Without the right to STRLEN the length is not limited.)
local function text_of(key)
  local length = redis.pcall('strlen', key)
  if type(length) == 'number' and length > most_bytes then return nil end
  return noted(redis.pcall('get', key)) or nil
end
-- TYPE may be refused to the user.
local function type_of(key)
  local found = redis.pcall('type', key)
  if found.ok then return found.ok end
  if noted(redis.pcall('exists', key)) == 0 then return 'none' end
  if type(redis.pcall('get', key)) == 'string' then return 'string' end
  if type(redis.pcall('hlen', key)) == 'number' then return 'hash' end
  if type(redis.pcall('zcard', key)) == 'number' then return 'zset' end
  noted(found)
  return ''
end
local time = noted(redis.pcall('time'))
local now = time and tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local holders, total, foreign, waiters, mode = {}, 0, 0, -1, false
local function add(value, left, count)
  if #holders >= 3 * most or #value > most_bytes then return end
  holders[#holders + 1] = value
  holders[#holders + 1] = left or false
  holders[#holders + 1] = count or false
end
local look_at = {}
function look_at.string()
  total = 1
  local value = text_of(name)
  if value then add(value) end
end
function look_at.hash()
  total = noted(redis.pcall('hlen', name)) or 1
  local fields = {}
  if total <= most + 1 then fields = noted(redis.pcall('hkeys', name)) or {} end
  for _, field in ipairs(fields) do
    -- Only small values are read: another application's may be large.
    local length = redis.pcall('hstrlen', name, field)
    local value = type(length) == 'number' and length <= 20 and redis.pcall('hget', name, field)
    if field == 'mode' then
      mode = type(value) == 'string' and value
    else
      add(field, nil, type(value) == 'string' and value)
    end
  end
  if mode then total = total - 1 end
end
function look_at.zset()
  if is_foreign(name) then
    foreign, total = 1, redis.call('zcard', name)
    return
  end
  if not now then return end -- without the time the holders are not known
  -- Holders and waiters whose time has not come; the others are removed by the next acquire.
  total = redis.call('zcount', name, '(' .. now, '+inf')
  waiters = redis.call('zcount', name, '-inf', '(-' .. now)
  local marks, read = waiters, 0
  while read < marks do
    -- A writer is among the marks of waiters, anywhere. It holds the lock alone.
    if read >= most_marks then
      error(redis.error_reply('ERR this lock has more than ' .. read .. ' waiters, among which a writer that holds it was not found'))
    end
    local others = redis.call('zrange', name, read, math.min(read + page, marks) - 1)
    for i, member in ipairs(others) do
      local what = string.sub(member, 1, 2)
      if what ~= 'i:' and what ~= 'q:' then
        waiters = waiters - 1
        if what ~= 't' then
          total = total + 1
          local place = read + i - 1
          add(member, -tonumber(redis.call('zrange', name, place, place, 'WITHSCORES')[2]) - now)
        end
      end
    end
    if total > 0 then break end
    read = read + page
  end
  local shared = redis.call('zrangebyscore', name, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  for i = 1, #shared, 2 do add(shared[i], tonumber(shared[i + 1]) - now) end
end
local kind = type_of(name)
if look_at[kind] then
  local well, problem = pcall(look_at[kind])
  if not well then noted({err = type(problem) == 'table' and problem.err or tostring(problem)}) end
end
local pttl = noted(redis.pcall('pttl', name)) or false
local fence, permits = false, false
if KEYS[4] then
  fence = text_of(KEYS[2]) or false
  permits = text_of(KEYS[4]) or false
  if waiters < 0 and kind ~= 'hash' and now then waiters = noted(redis.pcall('zcount', KEYS[3], '(' .. now, '+inf')) or -1 end
end
local listeners = -1
for _, command in ipairs({'numsub', 'shardnumsub'}) do
  local counted = ARGV[4] and redis.pcall('pubsub', command, unpack(ARGV, 4))
  if type(counted) == 'table' and not counted.err then
    listeners = math.max(listeners, 0)
    for i = 2, #counted, 2 do listeners = listeners + (tonumber(counted[i]) or 0) end
  end
end
return {kind, pttl, holders, total, foreign, waiters, fence, permits, listeners, mode, errors}
