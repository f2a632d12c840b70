-- Removes a segment's oldest entries, a bounded number in one step.
--
-- KEYS[1]  {seg:<id>}:log-state  (see create.lua)
-- KEYS[2]  {seg:<id>}:log        (see append.lua)
-- KEYS[3]  {seg:<id>}:log-index
-- ARGV[1]  number of the last entry to remove
-- ARGV[2]  how many entries to remove at most
--
-- Returns {number of the last entry that is gone, number of the last one that will have to go},
-- or {} = no such segment. They are equal when all is done.
local state = redis.call('HMGET', KEYS[1], 'next', 'trimmed')
if not state[1] then
  return {}
end
local trimmed = tonumber(state[2])
local goal = math.max(trimmed, math.min(tonumber(ARGV[1]), tonumber(state[1]) - 1))
local last = math.min(goal, trimmed + tonumber(ARGV[2]))
if last > trimmed then
  local id = string.format('1-%.0f', last)
  local indexed = redis.call('XRANGE', KEYS[3], id, id)
  if not indexed[1] then
    return redis.error_reply('ERR the index of the segment lacks entry ' .. id)
  end
  local fields = indexed[1][2]
  local total = {}
  for i = 1, #fields, 2 do
    total[fields[i]] = fields[i + 1]
  end
  local first = string.format('1-%.0f', last + 1)
  redis.call('XTRIM', KEYS[2], 'MINID', first)
  redis.call('XTRIM', KEYS[3], 'MINID', first)
  redis.call('HSET', KEYS[1], 'trimmed', string.format('%.0f', last),
    'trimmed_messages', total['m'], 'trimmed_bytes', total['c'])
end
return {last, goal}
