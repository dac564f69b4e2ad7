-- Whether the key is a sorted set of somebody's own, of whose members nothing may be removed and which must not be given an
-- expiry: looked at at both ends, where also stands a score that is no time (inf). A lock's members are letter, colon and 22 characters or more, or t; see include/turns. The
-- sign of a score goes with the letter; see include/holders.
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
