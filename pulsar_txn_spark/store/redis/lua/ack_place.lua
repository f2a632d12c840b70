-- Place a pending acknowledgement of (start, last]. It must start at the cursor: less was
-- acknowledged already, more leaves a gap (INV-9).
-- KEYS[2]  {seg:<id>}:cursor:<subscription>
-- KEYS[3]  {seg:<id>}:pending-acks:<subscription>  hash TxnId -> JSON {generation, start, last, sink, batch}
-- KEYS[4]  {seg:<id>}:closed, KEYS[5] {seg:<id>}:resolved
-- ARGV[4]  TxnId, ARGV[5] TC, ARGV[6] counter, ARGV[7] query id
-- ARGV[8]  start, ARGV[9] last, ARGV[10] sink, ARGV[11] batch id, ARGV[12] source epoch
-- -> {seq, 'OK'}
--    {seq, 'DELETED', last}                           the segment was deleted: nothing is left to acknowledge
--    {seq, 'PENDING', TxnId}                          another transaction has locked the cursor
--    {seq, 'CURSOR', position, sink, batch, TxnId}    start is not where the cursor stands
--    and what _acknowledging.lua answers
if retired then
  return {seq, 'DELETED', ARGV[9]}
end
local refused, cursor = refusal(ARGV[12])
if refused then
  return refused
end
local pending = redis.call('HGETALL', KEYS[3])
for i = 1, #pending, 2 do
  if pending[i] ~= ARGV[4] then
    return {seq, 'PENDING', pending[i]}
  end
  local mine = cjson.decode(pending[i + 1])
  if mine.start == ARGV[8] and mine.last == ARGV[9] then
    return {seq, 'OK'}
  end
  return {seq, 'PENDING', pending[i]}
end
if cursor.position ~= ARGV[8] then
  return {seq, 'CURSOR', cursor.position, cursor.sink or '', cursor.batch or '', cursor.txn or ''}
end
redis.call('HSET', KEYS[3], ARGV[4], cjson.encode({generation = cursor.generation, start = ARGV[8],
  last = ARGV[9], sink = ARGV[10], batch = ARGV[11]}))
return {changed(), 'OK'}
