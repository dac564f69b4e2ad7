-- Release one holder of a sorted set, or the mark of a waiter, and wake the waiters that this makes room for.
-- The remaining members may expire long before the released one would have.
local function fit(name)
  local left, pttl = last(name), redis.call('pttl', name)
  if left and (pttl > left or pttl == -1) then
    redis.call('pexpire', name, string.format('%.0f', math.max(left, 0)))
  end
end
-- Return a true value if the member was that of a holder whose time has not come.
local function release(name, member, shared, alone)
  local what = string.sub(member, 1, 1)
  local score = redis.call('zscore', name, member)
  redis.call('zrem', name, member)
  if is_foreign(name) then return score and math.abs(tonumber(score)) > now end
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
    -- Also for a writer that stops waiting: its mark does not keep readers out any more.
    local waited = redis.call('zrem', name, waiter('i', member)) == 1
    if score then pass_on(name) end
    if score or waited then
      redis.pcall('publish', shared, '0')
      redis.pcall('publish', alone, '0')
    end
  end
  fit(name)
  return score and math.abs(tonumber(score)) > now
end
