-- Read, in one step, everything that decides what of a segment may be read (INV-4). Read LAC first. The
-- high-position is one, too: it was acknowledged before this step, and so was what lies before it.
-- KEYS[2]  {seg:<id>}:pins, KEYS[3] {seg:<id>}:pin-order, KEYS[4] {seg:<id>}:dropped
-- KEYS[5]  {seg:<id>}:floor, KEYS[6] {seg:<id>}:state
-- KEYS[7]  {seg:<id>}:dropped-groups, KEYS[8] {seg:<id>}:dropped-floors (see seg_floor.lua)
-- ARGV[4]  how many pins at most; 0 is all
-- ARGV[5], ARGV[6]  range (start, end] that is going to be read, '' = all; ARGV[7] prefix of groups
-- ARGV[8]  '1' if the range ends at the lowest pin, should that lie before its end; may be left out
-- ARGV[9]  '1' if it ends at the high-position, should that lie behind its end; may be left out
-- ARGV[10] the LAC that the caller goes by, to be noted if there is no pin; '' or left out: note nothing
-- -> {seq, 'PLAIN', high-position}          no transaction has ever written here
--    {seq, 'OK', {bound, writer, TxnId...}, {writer, bound|TxnId...}, {TC, counter...}, dropped,
--     high-position}
-- The dropped writers are those that can have entries in the range, and the floor is that of the
-- range. The number behind it is that of all dropped writers. A high-position of '' is none.
-- What a deleted segment contained is known for good (PIP-373).
local high = redis.call('HGET', KEYS[6], 'high-position') or ''
-- What was readable stays so: seg_pin.lua pins the next writer behind it, not before. It is noted in the
-- step that shows no pin, so that nobody is pinned between. The high-position stays what was reported:
-- a report that comes later still emits its event.
local lac = ARGV[10] or ''
if lac > high and not retired and redis.call('ZCARD', KEYS[3]) == 0
    and lac > (redis.call('HGET', KEYS[6], 'passed') or '') then
  let_through()
  redis.call('HSET', KEYS[6], 'passed', lac)
  seq = changed()
end
if redis.call('HEXISTS', KEYS[6], 'contains-txn') == 0 and retired ~= 'txn' then
  return {seq, 'PLAIN', high}
end
local pins = {}
for _, member in ipairs(redis.call('ZRANGE', KEYS[3], 0, tonumber(ARGV[4]) - 1)) do
  local bar = string.find(member, '|', 1, true)
  local writer = string.sub(member, bar + 1)
  local pin = redis.call('HGET', KEYS[2], writer)
  pins[#pins + 1] = string.sub(member, 1, bar - 1)
  pins[#pins + 1] = writer
  pins[#pins + 1] = string.sub(pin, string.find(pin, '|', 1, true) + 1)
end
local dropped = redis.call('HGETALL', KEYS[4])
local floor = redis.call('HGETALL', KEYS[5])
local size = #dropped
local known = size / 2 + tonumber(redis.call('HGET', KEYS[6], 'folded') or '0')
local function add(group)
  local names = redis.call('HGETALL', ARGV[7] .. group)
  for i = 1, #names do
    dropped[size + i] = names[i]
  end
  size = size + #names
end
if ARGV[5] == '' then
  for _, group in ipairs(redis.call('ZRANGE', KEYS[7], 0, -1)) do
    add(group)
  end
  return {seq, 'OK', pins, dropped, floor, known, high}
end
local range_end = ARGV[6]
if ARGV[9] == '1' and high > range_end then
  range_end = high
end
if ARGV[8] == '1' and pins[1] and pins[1] < range_end then
  range_end = pins[1]
end
-- A group has the names of what can lie between its predecessor's position and its own.
local above, last = ARGV[5], ARGV[5] >= range_end
while not last do
  local groups = redis.call('ZRANGEBYLEX', KEYS[7], '(' .. above, '+', 'LIMIT', 0, 64)
  last = #groups < 64
  for _, group in ipairs(groups) do
    add(group)
    above = group
    if group >= range_end then
      last = true
      break
    end
  end
end
-- Behind the position of a group nothing was committed by what is below its counters.
local before = redis.call('ZREVRANGEBYLEX', KEYS[7], '[' .. ARGV[5], '-', 'LIMIT', 0, 1)[1]
if before then
  local at = {}
  for i = 1, #floor, 2 do
    at[floor[i]] = i + 1
  end
  for tc, counter in string.gmatch(redis.call('HGET', KEYS[8], before), '(%d+):(%d+)') do
    if not at[tc] then
      floor[#floor + 1], floor[#floor + 2] = tc, counter
    elseif tonumber(floor[at[tc]]) < tonumber(counter) then
      floor[at[tc]] = counter
    end
  end
end
return {seq, 'OK', pins, dropped, floor, known, high}
