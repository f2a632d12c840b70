-- Tell whether a segment has carried a transaction's decision out, and which one it was.
-- KEYS[2]  {seg:<id>}:closed, KEYS[3] {seg:<id>}:resolved
-- ARGV[4]  TxnId, ARGV[5] TC, ARGV[6] counter
-- -> {seq, 'RESOLVED', COMMITTED | ABORTED} | {seq, 'CLOSED'} | {seq, 'PENDING'}
--    {seq, 'CLOSED'} as well if the segment was deleted and has no mark of the transaction
-- What it says of the decision is what seg_materialize.lua compares (INV-1).
local closed = redis.call('HGET', KEYS[2], ARGV[5])
if closed and tonumber(ARGV[6]) < tonumber(closed) then
  return {seq, 'CLOSED'}
end
local decided = redis.call('HGET', KEYS[3], ARGV[4])
if decided then
  return {seq, 'RESOLVED', decided}
end
if retired then
  return {seq, 'CLOSED'}
end
return {seq, 'PENDING'}
