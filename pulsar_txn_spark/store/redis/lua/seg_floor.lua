-- Let dropped writers go, once nothing of theirs can be in the log any more (INV-5).
-- A pair (F, P) is noted when everything below F is decided and closed here, P being the LAC read
-- after that. When the log has deleted everything up to P, F becomes the floor. Readers skip every
-- entry of older transactions, so a zombie that wakes later writes nothing visible. An unfinished
-- pair is kept, not overwritten: the floor is never the F of a later pair.
-- P is never below the highest position that a committed transaction has here. A broker that has lost
-- the topic to another one may answer with an older LAC, and what committed must not be skipped.
-- KEYS[2]  {seg:<id>}:closed, KEYS[3] {seg:<id>}:floor, KEYS[4] {seg:<id>}:floor-pair
-- KEYS[5]  {seg:<id>}:dropped, KEYS[6] {seg:<id>}:state
-- KEYS[7]  {seg:<id>}:dropped-groups  zset of score 0, positions: see below
-- KEYS[8]  {seg:<id>}:dropped-floors  hash position -> '<names that are its own> <TC>:<counter>...'
-- ARGV[4]  TC, ARGV[5] F, ARGV[6] P, ARGV[7] the highest position that the log has deleted
-- KEYS[9]  {seg:<id>}:dropped-from  hash writer -> position at which it was pinned
-- ARGV[8]  key prefix of groups, ARGV[9] how many names make a group at least
-- ARGV[10] where to go on with the grouping ('0' = at the beginning, and so it ends), ARGV[11] about
--          how many names to read in one step
-- So that a look does not cost all dropped writers that there ever were, they are put into groups,
-- by position. When everything below F is decided and closed here, then every entry that counts of
-- older transactions has been acknowledged. It lies at or before Q, the higher of LAC and
-- high-position. So behind Q a reader can skip all older ones by their counter, zombies included,
-- and needs no names. The dropped writers below F become the group of Q, and of each earlier group
-- behind whose predecessor they may have entries. A range (start, end] then needs the groups from
-- the first behind `start` to the first at or behind `end`. It also needs what is in no group yet,
-- and the counters of the last group at or before `start`.
-- -> {seq, 'OK', floor, dropped writers removed, where to go on} | {seq, 'ALREADY'}
--    {seq, 'OPEN'} (not closed to F)
--    {seq, 'ALREADY'} as well if the segment was deleted
if retired then
  return {seq, 'ALREADY'}
end
local limit = tonumber(ARGV[5])
local closed = redis.call('HGET', KEYS[2], ARGV[4])
if not closed or tonumber(closed) < limit then
  return {seq, 'OPEN'}
end
local touched = false
local removed = 0
local function is_older(value, below)
  local txn = string.sub(value, string.find(value, '|', 1, true) + 1)
  local colon = string.find(txn, ':', 1, true)
  return string.sub(txn, 1, colon - 1) == ARGV[4] and tonumber(string.sub(txn, colon + 1)) < below
end
local function raise(tc, counter)
  local old = redis.call('HGET', KEYS[3], tc)
  if not old or tonumber(old) < tonumber(counter) then
    let_through()
    redis.call('HSET', KEYS[3], tc, counter)
  end
end
local function counters_of(group)
  local counters = {}
  local record = group and redis.call('HGET', KEYS[8], group) or '0'
  for tc, counter in string.gmatch(record, '(%d+):(%d+)') do
    counters[tc] = counter
  end
  return counters, tonumber(string.match(record, '^%d+'))
end
-- What the log has deleted needs no names: the floor takes over.
for _, group in ipairs(redis.call('ZRANGEBYLEX', KEYS[7], '-', '[' .. ARGV[7], 'LIMIT', 0, 64)) do
  local counters, own = counters_of(group)
  for tc, counter in pairs(counters) do
    raise(tc, counter)
  end
  redis.call('UNLINK', ARGV[8] .. group)
  redis.call('ZREM', KEYS[7], group)
  redis.call('HDEL', KEYS[8], group)
  redis.call('HINCRBY', KEYS[6], 'folded', -own)
  removed = removed + own
  touched = true
end
-- Move names into a group, and into the earlier ones that they reach into.
local function put(names, group, before)
  let_through()
  local from = redis.call('HMGET', KEYS[9], unpack(names))
  for i, name in ipairs(names) do
    local value = redis.call('HGET', KEYS[5], name)
    redis.call('HSET', ARGV[8] .. group, name, value)
    if before and before > (from[i] or '') then
      local low = from[i] and '(' .. from[i] or '-'
      for _, earlier in ipairs(redis.call('ZRANGEBYLEX', KEYS[7], low, '(' .. group)) do
        redis.call('HSET', ARGV[8] .. earlier, name, value)
      end
    end
  end
  redis.call('HDEL', KEYS[5], unpack(names))
  redis.call('HDEL', KEYS[9], unpack(names))
  redis.call('HINCRBY', KEYS[6], 'folded', #names)
  touched = true
end
local function note(group, counters, own)
  local record = {text(own)}
  for tc, counter in pairs(counters) do
    record[#record + 1] = tc .. ':' .. counter
  end
  redis.call('ZADD', KEYS[7], 0, group)
  redis.call('HSET', KEYS[8], group, table.concat(record, ' '))
end
local function fold()
  if ARGV[10] == '0' and redis.call('HLEN', KEYS[5]) < tonumber(ARGV[9]) then
    return '0'
  end
  local page = redis.call('HSCAN', KEYS[5], ARGV[10], 'COUNT', ARGV[11])
  local newest = redis.call('ZREVRANGE', KEYS[7], 0, 1)
  local last, before = newest[1], newest[2]
  local counters, own = counters_of(last)
  local covered = tonumber(counters[ARGV[4]] or '0')
  local known, fresh = {}, {}
  for i = 1, #page[2], 2 do
    if is_older(page[2][i + 1], covered) then
      known[#known + 1] = page[2][i]
    elseif is_older(page[2][i + 1], limit) then
      fresh[#fresh + 1] = page[2][i]
    end
  end
  if #known > 0 then
    put(known, last, before)
    own = own + #known
    note(last, counters, own)
  end
  if #fresh < tonumber(ARGV[9]) then
    return page[1]
  end
  local group = redis.call('HGET', KEYS[6], 'high-position') or ARGV[6]
  if group < ARGV[6] then
    group = ARGV[6]
  end
  if last and group <= last then
    group = last
  else
    before, own = last, 0
  end
  put(fresh, group, before)
  counters[ARGV[4]] = ARGV[5]
  note(group, counters, own + #fresh)
  return page[1]
end
local cursor = fold()
local pair = redis.call('HGET', KEYS[4], ARGV[4])
if not pair then
  local floor = redis.call('HGET', KEYS[3], ARGV[4])
  if floor and tonumber(floor) >= limit then
    if touched then
      return {changed(), 'OK', '', removed, cursor}
    elseif cursor ~= '0' then
      return {seq, 'OK', '', removed, cursor}
    end
    return {seq, 'ALREADY'}
  end
end
let_through()
if not pair then
  local last = ARGV[6]
  local high = redis.call('HGET', KEYS[6], 'high-position')
  if high and high > last then
    last = high
  end
  pair = ARGV[5] .. '|' .. last
  redis.call('HSET', KEYS[4], ARGV[4], pair)
end
local bar = string.find(pair, '|', 1, true)
local floor = string.sub(pair, 1, bar - 1)
if ARGV[7] < string.sub(pair, bar + 1) then
  return {changed(), 'OK', '', removed, cursor}
end
raise(ARGV[4], floor)
redis.call('HDEL', KEYS[4], ARGV[4])
local all = redis.call('HGETALL', KEYS[5])
for i = 1, #all, 2 do
  if is_older(all[i + 1], tonumber(floor)) then
    redis.call('HDEL', KEYS[5], all[i])
    redis.call('HDEL', KEYS[9], all[i])
    removed = removed + 1
  end
end
return {changed(), 'OK', floor, removed, cursor}
