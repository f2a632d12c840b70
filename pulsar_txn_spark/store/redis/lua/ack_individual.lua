-- Acknowledge single messages: lock each one's interval (previous, message] for a transaction.
-- All of them are placed, or none (in a transaction); see ACK_TRANSITIONS.
-- KEYS[2]  {seg:<id>}:cursor:<subscription>
-- KEYS[3]  {seg:<id>}:pending-acks:<subscription>  hash TxnId -> JSON {generation}
-- KEYS[4]  {seg:<id>}:closed, KEYS[5] {seg:<id>}:resolved
-- KEYS[6]  {seg:<id>}:ack-ranges:<subscription>
-- KEYS[7]  {seg:<id>}:pending-ranges:<subscription>:<TxnId>
-- ARGV[4]  TxnId, ARGV[5] TC, ARGV[6] counter, ARGV[7] owner of the subscription
-- ARGV[8]  source epoch of the consumer
-- ARGV[9]  'txn', or 'normal': what is acknowledged already stays unchanged, and is no conflict
-- ARGV[10] how many ranges the subscription may have
-- ARGV[11], ARGV[12], ...  pairs of start and end: ascending, not overlapping
-- -> {seq, 'OK', TxnId, end...}          'normal': what others have locked, so that it was dropped
--    {seq, 'PENDING', TxnId, end}        another transaction has locked some of the interval
--    {seq, 'DELETED', end}               it is acknowledged for good
--    {seq, 'MISFIT', end}                it is so in part: readers do not agree on what is visible
--    {seq, 'FULL', number of ranges}
--    and what _acknowledging.lua answers
local normal = ARGV[9] == 'normal'
if retired then -- a segment goes when all subscriptions have acknowledged it
  return normal and {seq, 'OK'} or {seq, 'DELETED', ARGV[#ARGV]}
end
local refused, cursor = refusal(ARGV[8])
if refused then
  return refused
end
local wanted, dropped = {}, {}
-- What starts at the cursor is always taken, as it is the way out of FULL; neighbours count once.
local added, reach = 0, cursor.position
for i = 11, #ARGV, 2 do
  local start, last = ARGV[i], ARGV[i + 1]
  if start < cursor.position then
    start = cursor.position
  end
  local free, locks = {}, {deleted = true}
  if start < last then
    free, locks = gaps(KEYS[6], start, last, ARGV[4])
  end
  if locks.other then
    if not normal then
      return {seq, 'PENDING', locks.other, last}
    end
    dropped[#dropped + 1] = locks.other
    dropped[#dropped + 1] = last
  elseif locks.deleted and #free > 0 then
    return {seq, 'MISFIT', last}
  elseif locks.deleted and not normal and not locks.mine then
    return {seq, 'DELETED', last}
  else
    for _, gap in ipairs(free) do
      wanted[#wanted + 1] = gap
      if gap[1] ~= reach then
        added = added + 1
      end
      reach = gap[2]
    end
  end
end
local result = {seq, 'OK', unpack(dropped)}
if #wanted == 0 then
  return result
end
local size = redis.call('ZCARD', KEYS[6])
if added > 0 and size + added > tonumber(ARGV[10]) then
  return {seq, 'FULL', size}
end
for _, gap in ipairs(wanted) do
  put(KEYS[6], KEYS[7], gap[1], gap[2], ARGV[4])
end
redis.call('HSETNX', KEYS[3], ARGV[4], cjson.encode({generation = cursor.generation}))
result[1] = changed()
return result
