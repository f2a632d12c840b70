-- Place a pending acknowledgement of (start, last]. It must start at the cursor: less was
-- acknowledged already, more leaves a gap (INV-9).
-- KEYS[2]  {seg:<id>}:cursor:<subscription>
-- KEYS[3]  {seg:<id>}:pending-acks:<subscription>  hash TxnId -> JSON {generation, start, last, sink, batch}
-- KEYS[4]  {seg:<id>}:closed, KEYS[5] {seg:<id>}:resolved
-- ARGV[4]  TxnId, ARGV[5] TC, ARGV[6] counter, ARGV[7] query id
-- ARGV[8]  start, ARGV[9] last, ARGV[10] sink, ARGV[11] batch id, ARGV[12] incarnation of the source
-- -> {seq, 'OK'}
--    {seq, 'CLOSED'} | {seq, 'RESOLVED', decision}    the transaction can place nothing more
--    {seq, 'UNCLAIMED'} | {seq, 'OWNED', query id}    the subscription is somebody else's
--    {seq, 'PENDING', TxnId}                          another transaction holds the cursor
--    {seq, 'CURSOR', position, sink, batch, TxnId}    start is not where the cursor stands
--    {seq, 'FENCED', incarnation}                     a newer source has taken over
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
local cursor = redis.call('HMGET', KEYS[2], 'query', 'generation', 'position', 'sink', 'batch', 'txn',
  'source')
if not cursor[3] then
  return {seq, 'UNCLAIMED'}
end
if cursor[1] ~= ARGV[7] then
  return {seq, 'OWNED', cursor[1] or ''}
end
if tonumber(cursor[7]) > tonumber(ARGV[12]) then
  return {seq, 'FENCED', cursor[7]}
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
if cursor[3] ~= ARGV[8] then
  return {seq, 'CURSOR', cursor[3], cursor[4] or '', cursor[5] or '', cursor[6] or ''}
end
redis.call('HSET', KEYS[3], ARGV[4], cjson.encode({generation = cursor[2], start = ARGV[8],
  last = ARGV[9], sink = ARGV[10], batch = ARGV[11]}))
return {changed(), 'OK'}
