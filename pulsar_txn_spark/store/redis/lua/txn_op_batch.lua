-- Append operation records of several transactions of one TC as one entry (PIP-160). Each
-- transaction is judged by itself; one that is refused takes nothing from the others. All of it is
-- one step: a crash leaves every record of the batch, or none. The entry has the sender's name, so
-- that a repeated request adds nothing.
-- KEYS[2]  {tc<N>}:op-batch:<entry>  hash 'entry' -> the batch; 'txn:<TxnId>' -> how many of its
--          records are in it, for each transaction that still needs it
-- KEYS[3]  {tc<N>}:op-log            hash of settings
-- KEYS[4]  {tc<N>}:metrics           hash of counts
-- ARGV[4]  key prefix of headers, ARGV[5] key prefix of operation records
-- ARGV[6]  name of the entry, ARGV[7] the batch (magic, version, protobuf)
-- ARGV[8] to ARGV[11]  TxnId, nonce, reference (magic, version, indices), number of records; and
--          so on
-- -> {seq, 'OK', {setting...}, {'OK' | 'FENCED' | 'ABSENT' | 'DECIDED', state}...}
local answers = {}
local accepted = {}
for i = 8, #ARGV, 4 do
  local header = redis.call('HMGET', ARGV[4] .. ARGV[i], 'state', 'nonce')
  if not header[1] then
    answers[#answers + 1] = {'ABSENT'}
  elseif header[2] ~= ARGV[i + 1] then
    answers[#answers + 1] = {'FENCED'}
  elseif header[1] ~= 'OPEN' then
    answers[#answers + 1] = {'DECIDED', header[1]}
  else
    answers[#answers + 1] = {'OK'}
    accepted[#accepted + 1] = i
  end
end
local settings = redis.call('HMGET', KEYS[3], 'enabled', 'max_records', 'max_bytes', 'max_delay_ms')
if #accepted == 0 then
  return {seq, 'OK', settings, unpack(answers)}
end
redis.call('HSET', KEYS[2], 'entry', ARGV[7])
local added = 0
for _, i in ipairs(accepted) do
  redis.call('HSET', ARGV[5] .. ARGV[i], 'batch:' .. ARGV[6], ARGV[i + 2])
  if redis.call('HSET', KEYS[2], 'txn:' .. ARGV[i], ARGV[i + 3]) == 1 then
    -- The header knows how many there are, so that they leave the gauge again.
    redis.call('HINCRBY', ARGV[4] .. ARGV[i], 'ops', ARGV[i + 3])
    added = added + ARGV[i + 3]
  end
end
redis.pcall('HINCRBY', KEYS[4], 'pulsar_txn_metadata_store_op_writes_total', added)
redis.pcall('HINCRBY', KEYS[4], 'pulsar_txn_metadata_store_outstanding_op_records', added)
return {changed(), 'OK', settings, unpack(answers)}
