-- Finds the last entry that was published before a moment: O(log n), as times do not go back. (Where
-- the server's clock was set back, it is an entry before which there is no younger one.)
--
-- KEYS[1]  {seg:<id>}:log-state  (see create.lua)
-- KEYS[2]  {seg:<id>}:log-index  (see append.lua)
-- ARGV[1]  the moment, in ms since the epoch
--
-- Returns the entry's number; the last one that is gone if there is none; nil = no such segment.
local state = redis.call('HMGET', KEYS[1], 'next', 'trimmed')
if not state[1] then
  return false
end
-- Invariant: low was published before (or is gone), high was not (or is not there yet).
local low, high = tonumber(state[2]), tonumber(state[1])
while high - low > 1 do
  local middle = math.floor((low + high) / 2)
  local id = string.format('1-%.0f', middle)
  local indexed = redis.call('XRANGE', KEYS[2], id, id)
  if not indexed[1] then
    return redis.error_reply('ERR the index of the segment lacks entry ' .. id)
  end
  local fields = indexed[1][2]
  local time = 0
  for i = 1, #fields, 2 do
    if fields[i] == 't' then
      time = tonumber(fields[i + 1])
    end
  end
  if time < tonumber(ARGV[1]) then
    low = middle
  else
    high = middle
  end
end
return low
