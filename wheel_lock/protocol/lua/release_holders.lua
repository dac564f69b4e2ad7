-- flags: allow-oom,allow-cross-slot-keys
-- Release many leases that are members of sorted sets, and wake the waiters that each makes room for.
-- KEYS: none.  ARGV: name, member, and two wake-up channels of each lease: of shared waiters, and of exclusive ones.
-- Reply: a flat list of the exceptions only: 1-based index, then 0 (gone) or the error's text.
-- One lease: KEYS[1], ARGV[1], ARGV[2], ARGV[3]
-- include: holders
-- include: turns
-- include: foreign
local argv = ARGV
-- The remaining members may expire long before the released one would have.
local function fit(name)
  local left, pttl = last(name), redis.call('pttl', name)
  if left and (pttl > left or pttl == -1) then
    redis.call('pexpire', name, string.format('%.0f', math.max(left, 0)))
  end
end
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
local out, n = {}, 0
for i = 1, #argv, 4 do
  local well, was_held = pcall(release, argv[i], argv[i + 1], argv[i + 2], argv[i + 3])
  local verdict = nil
  if not well then
    verdict = type(was_held) == 'table' and was_held.err or tostring(was_held)
  elseif not was_held then
    verdict = 0
  end
  if verdict then
    out[n + 1] = (i + 3) / 4
    out[n + 2] = verdict
    n = n + 2
  end
end
return out
