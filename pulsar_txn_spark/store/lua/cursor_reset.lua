-- Put a subscription's cursor somewhere else: a new generation, owned by nobody.
-- KEYS[2]  {seg:<id>}:cursor:<subscription>, KEYS[3] {seg:<id>}:pending-acks:<subscription>
-- KEYS[4]  {seg:<id>}:subscriptions, KEYS[5] {seg:<id>}:ack-ranges:<subscription>
-- ARGV[4]  position, ARGV[5] name
-- -> {seq, 'OK', generation} | {seq, 'PENDING', TxnId}
--    {seq, 'DELETED'} as well if the segment was deleted
if retired then
  return {seq, 'DELETED'}
end
local pending = redis.call('HKEYS', KEYS[3])
if #pending > 0 then
  return {seq, 'PENDING', pending[1]}
end
-- Where the cursor stays, the query before may come back and replay its last batch: what it may read
-- again stays as well.
local cursor = redis.call('HMGET', KEYS[2], 'position', 'released')
if cursor[2] and cursor[1] ~= ARGV[4] then
  redis.call('HSET', KEYS[2], 'released', ARGV[4])
end
local generation = redis.call('HINCRBY', KEYS[2], 'generation', 1)
redis.call('HSET', KEYS[2], 'query', '', 'source', '0', 'position', ARGV[4])
redis.call('HDEL', KEYS[2], 'txn', 'sink', 'batch')
-- Nothing is pending, so that all of these are of the old generation and deleted.
redis.call('DEL', KEYS[5])
redis.call('SADD', KEYS[4], ARGV[5])
return {changed(), 'OK', text(generation)}
