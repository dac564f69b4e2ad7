-- Return whether the key is a sorted set of another application, whose members must not be removed and which must not get
-- an expiry. Both ends are checked, where a score that is not a time (inf) is found, too. A lock's members are a letter, a
-- colon and at least 22 characters, or t; see include/turns. The letter determines the sign of the score; see include/holders.
local function is_foreign(name)
  for _, place in ipairs({0, -1}) do
    local found = redis.call('zrange', name, place, place, 'WITHSCORES')
    local member, score = found[1], tonumber(found[2])
    if member then
      local is_turn = member == 't' and score < 0
      if not is_turn and not (#member >= 24 and string.find(member, score > 0 and '^[rp]:' or '^[wiq]:')) then return true end
      if math.abs(score) > 9007199254740991 then return true end
    end
  end
  return false
end
