-- Return whether readers wait.
local function readers_wait(name)
  for _, member in ipairs(redis.call('zrangebyscore', name, '-inf', '(0')) do
    if string.sub(member, 1, 2) == 'q:' then return true end
  end
  return false
end
-- After a writer: if readers wait it is their turn, a moment in which readers that were woken are granted and writers are
-- not. So neither readers nor writers can starve the others.
local function pass_on(name)
  if readers_wait(name) then enter(name, -1, 't', 100) end
end
