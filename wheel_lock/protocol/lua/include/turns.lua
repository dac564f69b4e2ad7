-- Whether readers wait.
local function readers_wait(name)
  for _, member in ipairs(redis.call('zrangebyscore', name, '-inf', '(0')) do
    if string.sub(member, 1, 2) == 'q:' then return true end
  end
  return false
end
-- A writer has gone: if readers wait the turn is theirs, for a moment in which those who were woken come in and no other
-- writer does. So neither can keep the other out for ever.
local function pass_on(name)
  if readers_wait(name) then enter(name, -1, 't', 100) end
end
