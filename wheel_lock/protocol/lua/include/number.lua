-- Return the whole number in a text of digits, nil if it is not one or exceeds most. (tonumber also accepts nan, inf,
-- 0x10, 1e3, -1 and ' 5', and rounds numbers above 2^53.)
local function whole(text, most)
  if type(text) ~= 'string' or #text > 16 or not string.find(text, '^%d+$') then return nil end
  local number = tonumber(text)
  return number <= most and number or nil
end
