-- Read the operation records of a transaction, and the batches that some of them are in.
-- KEYS[2]  {tc<N>}:txn-op:<TxnId>
-- ARGV[4]  key prefix of batches
-- -> {seq, 'OK', {name, record or reference...}, {entry, batch...}}
local records = redis.call('HGETALL', KEYS[2])
local batches = {}
for i = 1, #records, 2 do
  if string.sub(records[i + 1], 1, 2) == '\14\1' then
    local entry = string.sub(records[i], 7)
    batches[#batches + 1] = entry
    batches[#batches + 1] = redis.call('HGET', ARGV[4] .. entry, 'entry') or ''
  end
end
return {seq, 'OK', records, batches}
