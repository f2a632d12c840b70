-- Put behind the prelude in the scripts that only the owner of an open transaction may call.
-- KEYS[2]  {tc<N>}:txn:<TxnId>
-- ARGV[4]  nonce of the owner
-- For all others the answer is {seq, 'FENCED'} | {seq, 'DECIDED', state} | {seq, 'ABSENT'}.
local header = redis.call('HMGET', KEYS[2], 'state', 'nonce')
if not header[1] then
  return {seq, 'ABSENT'}
end
if header[2] ~= ARGV[4] then
  return {seq, 'FENCED'}
end
if header[1] ~= 'OPEN' then
  return {seq, 'DECIDED', header[1]}
end
