-- Return the reply for a key that is held: its remaining time in ms, -1 if it does not expire, and its type if `looked`, the
-- reply of a command of this lock type, says that the key has another one.
local function is_of_other_type(looked)
  return type(looked) == 'table' and string.find(tostring(looked.err), 'WRONGTYPE', 1, true) ~= nil
end
local function held(name, looked)
  local ttl = redis.call('pttl', name)
  if not is_of_other_type(looked) then return {ttl} end
  local found = redis.pcall('type', name)
  return {ttl, type(found) == 'table' and found.ok or 'value of another type'}
end
