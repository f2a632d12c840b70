-- Append operation records, each by itself. A record has a name, so that a repeated request adds
-- nothing.
-- KEYS[2]  {tc<N>}:txn:<TxnId>
-- KEYS[3]  {tc<N>}:txn-op:<TxnId>  hash name -> record, 'batch:<entry>' -> reference
-- KEYS[4]  {tc<N>}:op-log          hash of settings
-- KEYS[5]  {tc<N>}:metrics         hash of counts
-- ARGV[4]  nonce, ARGV[5] '1' = the decision follows in the same step: a full server takes them with it
-- ARGV[6], ARGV[7]  name and record, and so on
-- -> {seq, 'OK', setting...} | what _open_txn.lua answers
if ARGV[5] == '1' then
  let_through()
end
local added = 0
for i = 6, #ARGV, 2 do
  added = added + redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1])
end
-- The header knows how many there are, so that they leave the gauge again.
redis.call('HINCRBY', KEYS[2], 'ops', added)
redis.pcall('HINCRBY', KEYS[5], 'pulsar_txn_metadata_store_op_writes_total', added)
redis.pcall('HINCRBY', KEYS[5], 'pulsar_txn_metadata_store_outstanding_op_records', added)
local settings = redis.call('HMGET', KEYS[4], 'enabled', 'max_records', 'max_bytes', 'max_delay_ms')
return {changed(), 'OK', unpack(settings)}
