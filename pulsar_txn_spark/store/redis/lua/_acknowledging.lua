-- Put behind the prelude in the scripts that place acknowledgements.
-- KEYS[2]  {seg:<id>}:cursor:<subscription>
-- KEYS[4]  {seg:<id>}:closed, KEYS[5] {seg:<id>}:resolved
-- ARGV[4]  TxnId, ARGV[5] TC, ARGV[6] counter, ARGV[7] owner of the subscription: a query, or clients
-- Who may not acknowledge here is answered by:
--    {seq, 'CLOSED'}                the segment takes nothing of so old a transaction
--    {seq, 'RESOLVED', decision}    the transaction was materialized here: it can place nothing more
--    {seq, 'UNCLAIMED'} | {seq, 'OWNED', query id}    the subscription is somebody else's
--    {seq, 'FENCED', source epoch}   a newer source or consumer has taken the subscription over
-- Returns such an answer, or nil and the cursor's fields: {query, generation, position, source, sink,
-- batch, txn}.
local function refusal(source_epoch)
  local closed = redis.call('HGET', KEYS[4], ARGV[5])
  if closed and tonumber(ARGV[6]) < tonumber(closed) then
    return {seq, 'CLOSED'}
  end
  local resolved = redis.call('HGET', KEYS[5], ARGV[4])
  if resolved then
    return {seq, 'RESOLVED', resolved}
  end
  local names = {'query', 'generation', 'position', 'source', 'sink', 'batch', 'txn'}
  local values = redis.call('HMGET', KEYS[2], unpack(names))
  local cursor = {}
  for i, name in ipairs(names) do
    cursor[name] = values[i]
  end
  if not cursor.position then
    return {seq, 'UNCLAIMED'}
  end
  if cursor.query ~= ARGV[7] then
    return {seq, 'OWNED', cursor.query or ''}
  end
  if tonumber(cursor.source) > tonumber(source_epoch) then
    return {seq, 'FENCED', cursor.source}
  end
  return nil, cursor
end
