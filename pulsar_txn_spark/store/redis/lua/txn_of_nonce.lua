-- Find the transaction of an attempt nonce.
-- KEYS[2]  {tc<N>}:nonces
-- ARGV[4]  nonce
-- -> {seq, 'OK', TxnId} | {seq, 'ABSENT'}
local txn = redis.call('HGET', KEYS[2], ARGV[4])
if not txn then
  return {seq, 'ABSENT'}
end
return {seq, 'OK', txn}
