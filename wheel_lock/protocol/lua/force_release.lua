-- flags: allow-oom
-- Release one lock of any kind for its holders, only if those are exactly the expected ones. Waiters are woken as by the
-- holders themselves. Fences, permits, queues and the marks of waiters stay.
-- KEYS: name, and of a fair lock its queue and the expiries of its waiters.
-- ARGV: the key's type, two wake-up channels, and the expected holders: a value, a field, or the members of a sorted set.
-- The channels are of a string those of exclusive and fair locks, else those of shared and of exclusive waiters.
-- Reply: the number of holders that were removed, 0 (there is none), -1 (the holders are others).
-- include: held
-- include: number
-- include: queue
-- include: holders
-- include: turns
-- include: foreign
-- include: leave
local name, kind, first_channel, second_channel = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local expected, missing = {}, 0
for i = 4, #ARGV do
  if not expected[ARGV[i]] then missing = missing + 1 end
  expected[ARGV[i]] = true
end
-- Return whether these are the expected holders. Each value occurs once.
local function as_expected(found)
  for _, value in ipairs(found) do
    if not expected[value] then return false end
  end
  return #found == missing
end
-- A key of another type has other holders; other errors are replied. Both are returned from the script, so nothing is done.
local function problem(looked)
  return is_of_other_type(looked) and -1 or looked
end
if kind == 'string' then
  local value = redis.pcall('get', name)
  if type(value) == 'table' then return problem(value) end
  if not value then return 0 end
  if not as_expected({value}) then return -1 end
  redis.call('del', name)
  redis.pcall('publish', first_channel, '0')
  -- A queue key of another type must not turn the release into an error.
  local well, first = true, nil
  if KEYS[2] then well, first = pcall(head, KEYS[2], KEYS[3]) end
  if well and first then redis.pcall('publish', second_channel, first) end
  return 1
end
if kind == 'hash' then
  local fields = redis.pcall('hkeys', name)
  if fields.err then return problem(fields) end
  if #fields == 0 then return 0 end
  if not as_expected(fields) then return -1 end
  redis.call('del', name)
  redis.pcall('publish', first_channel, '0')
  return #fields
end
local members = redis.pcall('zrange', name, 0, -1, 'WITHSCORES')
if members.err then return problem(members) end
if is_foreign(name) then return -1 end
local found = {}
for i = 1, #members, 2 do
  local is_holder = string.find(members[i], '^[rwp]:') and math.abs(tonumber(members[i + 1])) > now
  if is_holder then found[#found + 1] = members[i] end
end
if #found == 0 then return 0 end
if not as_expected(found) then return -1 end
for _, member in ipairs(found) do release(name, member, first_channel, second_channel) end
return #found
