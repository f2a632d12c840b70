-- Delete the operation records and staged writes of a decided transaction.
-- KEYS[2]  {tc<N>}:txn:<TxnId>, KEYS[3] {tc<N>}:txn-op:<TxnId>, KEYS[4] {tc<N>}:stage:<nonce>
-- KEYS[#KEYS] {tc<N>}:metrics  hash of counts
-- ARGV[4]  'materialized', once every participant has
-- -> {seq, 'OK'} | {seq, 'OPEN'} | {seq, 'ABSENT'}
local state = redis.call('HGET', KEYS[2], 'state')
if not state then
  return {seq, 'ABSENT'}
end
if state == 'OPEN' then
  return {seq, 'OPEN'}
end
redis.call('DEL', KEYS[3], KEYS[4])
redis.call('HSET', KEYS[2], 'materialized', '1')
local ops = redis.call('HGET', KEYS[2], 'ops')
if ops and ops ~= '0' then
  redis.pcall('HINCRBY', KEYS[#KEYS], 'pulsar_txn_metadata_store_outstanding_op_records', '-' .. ops)
  redis.call('HDEL', KEYS[2], 'ops')
end
return {changed(), 'OK'}
