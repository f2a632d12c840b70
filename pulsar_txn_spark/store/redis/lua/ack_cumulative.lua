-- Acknowledge everything up to a message: hold what is left of (start, last] for a transaction.
-- Nothing may be left out before it: what lies between the cursor and `start` must be deleted, or
-- held by the same transaction. So an acknowledgement that follows an aborted one does not eat
-- what that one gave back (INV-9). At most 512 intervals at once; asking again goes on.
-- KEYS     as in ack_individual.lua
-- ARGV[4]  TxnId, ARGV[5] TC, ARGV[6] counter, ARGV[7] owner of the subscription
-- ARGV[8]  incarnation of the consumer, ARGV[9] start, ARGV[10] end
-- -> {seq, 'OK'} | {seq, 'MORE'}
--    {seq, 'CLOSED'} | {seq, 'RESOLVED', decision} | {seq, 'UNCLAIMED'} | {seq, 'OWNED', query id}
--    {seq, 'FENCED', incarnation}        a newer consumer has taken the subscription over
--    {seq, 'PENDING', TxnId, end}        another transaction holds something up to there
--    {seq, 'DELETED', end}               all of it is acknowledged for good
--    {seq, 'CURSOR', cursor, gap}        nobody acknowledged what begins at `gap`, before `start`
--    {seq, 'CLOSED'} as well if the segment was deleted
if retired then
  return {seq, 'CLOSED'}
end
local closed = redis.call('HGET', KEYS[4], ARGV[5])
if closed and tonumber(ARGV[6]) < tonumber(closed) then
  return {seq, 'CLOSED'}
end
local resolved = redis.call('HGET', KEYS[5], ARGV[4])
if resolved then
  return {seq, 'RESOLVED', resolved}
end
local cursor = redis.call('HMGET', KEYS[2], 'query', 'generation', 'position', 'source')
if not cursor[3] then
  return {seq, 'UNCLAIMED'}
end
if cursor[1] ~= ARGV[7] then
  return {seq, 'OWNED', cursor[1] or ''}
end
if tonumber(cursor[4]) > tonumber(ARGV[8]) then
  return {seq, 'FENCED', cursor[4]}
end
local start, last = ARGV[9], ARGV[10]
if last <= cursor[3] then
  return {seq, 'DELETED', last}
end
if start < cursor[3] then
  start = cursor[3]
end
local free, held = gaps(KEYS[6], cursor[3], last, ARGV[4])
if held.other then
  return {seq, 'PENDING', held.other, last}
end
if cursor[3] < start then
  if free[1] and free[1][1] < start then
    return {seq, 'CURSOR', cursor[3], free[1][1]}
  end
  free, held = gaps(KEYS[6], start, last, ARGV[4])
end
if #free == 0 then
  if held.mine then
    return {seq, 'OK'}
  end
  return {seq, 'DELETED', last}
end
for i = 1, math.min(#free, 512) do
  put(KEYS[6], KEYS[7], free[i][1], free[i][2], ARGV[4])
end
redis.call('HSETNX', KEYS[3], ARGV[4], cjson.encode({generation = cursor[2]}))
if #free > 512 then
  return {changed(), 'MORE'}
end
return {changed(), 'OK'}
