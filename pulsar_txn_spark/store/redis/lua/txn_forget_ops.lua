-- Delete the operation records and staged writes of a decided transaction. A batch goes with the
-- last transaction that has a record in it.
-- KEYS[2]  {tc<N>}:txn:<TxnId>, KEYS[3] {tc<N>}:txn-op:<TxnId>, KEYS[4] {tc<N>}:stage:<nonce>
-- KEYS[5]  {tc<N>}:idx:txn-unmaterialized, KEYS[6] {tc<N>}:idx:stages
-- KEYS[#KEYS] {tc<N>}:metrics  hash of counts
-- ARGV[4]  'materialized', once every participant has
-- ARGV[5]  TxnId, ARGV[6] key prefix of batches
-- ARGV[7]  where to go on ('0' = at the beginning), ARGV[8] about how many records in one step
-- -> {seq, 'OK'} | {seq, 'PENDING', where to go on} | {seq, 'OPEN'} | {seq, 'ABSENT'}
local state = redis.call('HGET', KEYS[2], 'state')
if not state then
  return {seq, 'ABSENT'}
end
if state == 'OPEN' then
  return {seq, 'OPEN'}
end
local scan = redis.call('HSCAN', KEYS[3], ARGV[7], 'COUNT', ARGV[8])
for i = 1, #scan[2], 2 do
  if string.sub(scan[2][i + 1], 1, 2) == '\14\1' then
    local batch = ARGV[6] .. string.sub(scan[2][i], 7)
    redis.call('HDEL', batch, 'txn:' .. ARGV[5])
    if redis.call('HLEN', batch) == 1 then
      redis.call('DEL', batch)
    end
    redis.call('HDEL', KEYS[3], scan[2][i])
  end
end
if scan[1] ~= '0' then
  return {changed(), 'PENDING', scan[1]}
end
redis.call('DEL', KEYS[3], KEYS[4])
redis.call('ZREM', KEYS[6], redis.call('HGET', KEYS[2], 'nonce'))
redis.call('HSET', KEYS[2], 'materialized', '1')
redis.call('ZREM', KEYS[5], ARGV[5])
local ops = redis.call('HGET', KEYS[2], 'ops')
if ops and ops ~= '0' then
  redis.pcall('HINCRBY', KEYS[#KEYS], 'pulsar_txn_metadata_store_outstanding_op_records', '-' .. ops)
  redis.call('HDEL', KEYS[2], 'ops')
end
return {changed(), 'OK'}
