-- Close a segment for the transactions of a TC below a counter: they register nothing more here.
-- Refused while one of them still has a pin or a pending ack here.
-- KEYS[2]  {seg:<id>}:pins, KEYS[3] {seg:<id>}:closed, KEYS[4] {seg:<id>}:resolved
-- KEYS[5]  {seg:<id>}:subscriptions
-- ARGV[4]  TC, ARGV[5] counter F, ARGV[6] key prefix of pending acks
-- -> {seq, 'OK' | 'ALREADY', closed} | {seq, 'PENDING', TxnId}
--    {seq, 'ALREADY'} as well if the segment was deleted
if retired then
  return {seq, 'ALREADY'}
end
local before = redis.call('HGET', KEYS[3], ARGV[4])
local limit = tonumber(ARGV[5])
if before and tonumber(before) >= limit then
  return {seq, 'ALREADY', before}
end
local function older(txn)
  local colon = string.find(txn, ':', 1, true)
  return string.sub(txn, 1, colon - 1) == ARGV[4] and tonumber(string.sub(txn, colon + 1)) < limit
end
for _, pin in ipairs(redis.call('HVALS', KEYS[2])) do
  local txn = string.sub(pin, string.find(pin, '|', 1, true) + 1)
  if older(txn) then
    return {seq, 'PENDING', txn}
  end
end
for _, subscription in ipairs(redis.call('SMEMBERS', KEYS[5])) do
  for _, txn in ipairs(redis.call('HKEYS', ARGV[6] .. subscription)) do
    if older(txn) then
      return {seq, 'PENDING', txn}
    end
  end
end
redis.call('HSET', KEYS[3], ARGV[4], ARGV[5])
for _, txn in ipairs(redis.call('HKEYS', KEYS[4])) do
  if older(txn) then
    redis.call('HDEL', KEYS[4], txn)
  end
end
return {changed(), 'OK', ARGV[5]}
