-- Tell whether a segment has carried a transaction's decision out.
-- KEYS[2]  {seg:<id>}:closed, KEYS[3] {seg:<id>}:resolved
-- ARGV[4]  TxnId, ARGV[5] TC, ARGV[6] counter
-- -> {seq, 'RESOLVED'} | {seq, 'CLOSED'} | {seq, 'PENDING'}
--    {seq, 'CLOSED'} as well if the segment was deleted
if retired then
  return {seq, 'CLOSED'}
end
local closed = redis.call('HGET', KEYS[2], ARGV[5])
if closed and tonumber(ARGV[6]) < tonumber(closed) then
  return {seq, 'CLOSED'}
end
if redis.call('HEXISTS', KEYS[3], ARGV[4]) == 1 then
  return {seq, 'RESOLVED'}
end
return {seq, 'PENDING'}
