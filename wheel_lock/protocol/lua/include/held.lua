-- What is told where somebody holds the key: his remaining time in ms, -1 where it does not expire, and the type of the key
-- where `looked`, the reply of a command that this kind of lock uses, says that it is of another one.
local function is_of_other_type(looked)
  return type(looked) == 'table' and string.find(tostring(looked.err), 'WRONGTYPE', 1, true) ~= nil
end
local function held(name, looked)
  local ttl = redis.call('pttl', name)
  if not is_of_other_type(looked) then return {ttl} end
  local found = redis.pcall('type', name)
  return {ttl, type(found) == 'table' and found.ok or 'value of another type'}
end
