-- Let dropped writers go, once nothing of theirs can be in the log any more (INV-5).
-- A pair (F, P) is noted when everything below F is decided and closed here, P being the LAC read
-- after that. When the log has deleted everything up to P, F becomes the floor: readers skip every
-- entry of older transactions, so a zombie that wakes later writes nothing visible. An unfinished
-- pair is kept, not overwritten: the floor is never the F of a later pair.
-- KEYS[2]  {seg:<id>}:closed, KEYS[3] {seg:<id>}:floor, KEYS[4] {seg:<id>}:floor-pair
-- KEYS[5]  {seg:<id>}:dropped
-- ARGV[4]  TC, ARGV[5] F, ARGV[6] P, ARGV[7] the highest position that the log has deleted
-- -> {seq, 'OK', floor, dropped writers removed} | {seq, 'ALREADY'} | {seq, 'OPEN'} (not closed to F)
--    {seq, 'ALREADY'} as well if the segment was deleted
if retired then
  return {seq, 'ALREADY'}
end
local limit = tonumber(ARGV[5])
local closed = redis.call('HGET', KEYS[2], ARGV[4])
if not closed or tonumber(closed) < limit then
  return {seq, 'OPEN'}
end
local pair = redis.call('HGET', KEYS[4], ARGV[4])
if not pair then
  local floor = redis.call('HGET', KEYS[3], ARGV[4])
  if floor and tonumber(floor) >= limit then
    return {seq, 'ALREADY'}
  end
  pair = ARGV[5] .. '|' .. ARGV[6]
  redis.call('HSET', KEYS[4], ARGV[4], pair)
end
local bar = string.find(pair, '|', 1, true)
local floor = string.sub(pair, 1, bar - 1)
if ARGV[7] < string.sub(pair, bar + 1) then
  return {changed(), 'OK', '', 0}
end
redis.call('HSET', KEYS[3], ARGV[4], floor)
redis.call('HDEL', KEYS[4], ARGV[4])
local removed = 0
local all = redis.call('HGETALL', KEYS[5])
for i = 1, #all, 2 do
  local txn = string.sub(all[i + 1], string.find(all[i + 1], '|', 1, true) + 1)
  local colon = string.find(txn, ':', 1, true)
  if string.sub(txn, 1, colon - 1) == ARGV[4]
      and tonumber(string.sub(txn, colon + 1)) < tonumber(floor) then
    redis.call('HDEL', KEYS[5], all[i])
    removed = removed + 1
  end
end
return {changed(), 'OK', floor, removed}
