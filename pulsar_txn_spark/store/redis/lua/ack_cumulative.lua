-- Acknowledge everything up to a message: lock what is left of (start, last] for a transaction.
-- Nothing may be left out before it: what lies between the cursor and `start` must be deleted, or
-- locked by the same transaction. So an acknowledgement that follows an aborted one does not take
-- what that one gave back (INV-9). At most 512 intervals at once; the next call goes on.
-- KEYS     as in ack_individual.lua
-- ARGV[4]  TxnId, ARGV[5] TC, ARGV[6] counter, ARGV[7] owner of the subscription
-- ARGV[8]  source epoch of the consumer, ARGV[9] start, ARGV[10] end
-- -> {seq, 'OK'} | {seq, 'MORE'}
--    {seq, 'PENDING', TxnId, end}        another transaction has locked something up to there
--    {seq, 'DELETED', end}               all of it is acknowledged for good
--    {seq, 'CURSOR', cursor, gap}        nobody acknowledged what begins at `gap`, before `start`
--    and what _acknowledging.lua answers
if retired then
  return {seq, 'DELETED', ARGV[10]} -- a segment goes when all subscriptions have acknowledged it
end
local refused, cursor = refusal(ARGV[8])
if refused then
  return refused
end
local start, last = ARGV[9], ARGV[10]
if last <= cursor.position then
  return {seq, 'DELETED', last}
end
if start < cursor.position then
  start = cursor.position
end
local free, locks = gaps(KEYS[6], cursor.position, last, ARGV[4])
if locks.other then
  return {seq, 'PENDING', locks.other, last}
end
if cursor.position < start then
  if free[1] and free[1][1] < start then
    return {seq, 'CURSOR', cursor.position, free[1][1]}
  end
  free, locks = gaps(KEYS[6], start, last, ARGV[4])
end
if #free == 0 then
  if locks.mine then
    return {seq, 'OK'}
  end
  return {seq, 'DELETED', last}
end
for i = 1, math.min(#free, 512) do
  put(KEYS[6], KEYS[7], free[i][1], free[i][2], ARGV[4])
end
redis.call('HSETNX', KEYS[3], ARGV[4], cjson.encode({generation = cursor.generation}))
if #free > 512 then
  return {changed(), 'MORE'}
end
return {changed(), 'OK'}
