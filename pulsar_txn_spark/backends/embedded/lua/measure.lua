-- Finds how much a range holds, and how far one gets in it within given amounts: O(log n) each.
--
-- KEYS[1]  {seg:<id>}:log-state  (see create.lua)
-- KEYS[2]  {seg:<id>}:log-index  (see append.lua)
-- ARGV[1]  number of the last entry before the range
-- ARGV[2]  number of the last entry of the range
-- ARGV[3], ARGV[4], ...  pairs of: m = messages or c = bytes; an amount of them
--
-- Returns {first, last, messages, bytes, reached, ...}: the range (first, last] that is there,
-- what it holds. For each pair, the last entry up to which the range holds no more than that.
-- {} = no such segment.
local state = redis.call('HMGET', KEYS[1], 'next', 'trimmed', 'trimmed_messages', 'trimmed_bytes')
if not state[1] then
  return {}
end
local trimmed = tonumber(state[2])
local first = math.max(tonumber(ARGV[1]), trimmed)
local last = math.max(first, math.min(tonumber(ARGV[2]), tonumber(state[1]) - 1))

local function totals(entry)
  if entry <= trimmed then
    return {m = tonumber(state[3]), c = tonumber(state[4])}
  end
  local id = string.format('1-%.0f', entry)
  local indexed = redis.call('XRANGE', KEYS[2], id, id)
  if not indexed[1] then
    return nil
  end
  local fields = indexed[1][2]
  local total = {}
  for i = 1, #fields, 2 do
    total[fields[i]] = tonumber(fields[i + 1])
  end
  return total
end

local before = totals(first)
local whole = totals(last)
if not before or not whole then
  return redis.error_reply('ERR the index of the segment lacks an entry')
end
local reply = {first, last, whole.m - before.m, whole.c - before.c}
for i = 3, #ARGV, 2 do
  local what = ARGV[i]
  local limit = before[what] + tonumber(ARGV[i + 1])
  -- Invariant: everything up to low is within the limit, everything from high on is not.
  local low, high = first, last + 1
  if whole[what] <= limit then
    low = last
  end
  while low < last and high - low > 1 do
    local middle = math.floor((low + high) / 2)
    local total = totals(middle)
    if not total then
      return redis.error_reply('ERR the index of the segment lacks an entry')
    end
    if total[what] <= limit then
      low = middle
    else
      high = middle
    end
  end
  reply[#reply + 1] = low
end
return reply
