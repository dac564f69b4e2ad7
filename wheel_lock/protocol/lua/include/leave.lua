-- Release one holder of a sorted set, or the mark of a waiter, and wake the waiters that this makes room for.
-- The remaining members may expire long before the released one would have.
local function fit(name)
  local left, pttl = last(name), redis.call('pttl', name)
  if left and (pttl > left or pttl == -1) then
    redis.call('pexpire', name, string.format('%.0f', math.max(left, 0)))
  end
end
-- Do what follows the removal of a member: `score` is what it had.
local function make_room(name, member, score, shared, alone)
  local what = string.sub(member, 1, 1)
  if is_foreign(name) then return end
  if what == 'p' then
    if score then redis.pcall('publish', shared, '0') end
  elseif what == 'r' then
    redis.call('zrem', name, waiter('q', member))
    if score then
      purge(name)
      if redis.call('zcount', name, '(0', '+inf') == 0 then
        -- The readers' turn is over, unless other readers that were woken have not come yet.
        if not readers_wait(name) then redis.call('zrem', name, 't') end
        redis.pcall('publish', alone, '0')
      end
    end
  else
    -- Also for a writer that stops waiting: its mark no longer keeps readers out.
    local waited = redis.call('zrem', name, waiter('i', member)) == 1
    if score then pass_on(name) end
    if score or waited then
      redis.pcall('publish', shared, '0')
      redis.pcall('publish', alone, '0')
    end
  end
  fit(name)
end
-- Return a true value if the member was that of a holder whose time has not come.
local function release(name, member, shared, alone)
  local score = redis.call('zscore', name, member)
  redis.call('zrem', name, member)
  local well, problem = pcall(make_room, name, member, score, shared, alone)
  if not well then
    local text = type(problem) == 'table' and problem.err or tostring(problem)
    if not string.find(text, 'non local key', 1, true) then error(problem, 0) end
    -- The key went with its last member, and a node that a slot is leaving refuses commands for keys that it does not have.
    redis.pcall('publish', shared, '0')
    redis.pcall('publish', alone, '0')
  end
  return score and math.abs(tonumber(score)) > now
end
