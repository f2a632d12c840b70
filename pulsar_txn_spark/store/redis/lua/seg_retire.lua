-- Delete a sealed segment, as far as its metadata is concerned: the point of no return. From this step
-- on nothing is registered here any more, and this outlives everything else in the tag (INV-5, INV-6).
-- Refused while a transaction or a subscription needs the segment.
-- KEYS[2]  {seg:<id>}:pins, KEYS[3] {seg:<id>}:subscriptions, KEYS[4] {seg:<id>}:state
-- ARGV[4]  position at which the segment was sealed
-- ARGV[5]  key prefix of cursors, ARGV[6] key prefix of pending acks
-- ARGV[7...]  the subscriptions that stand in every child already
-- -> {seq, 'OK'} | {seq, 'ALREADY'}
--    {seq, 'PENDING', TxnId}                  a transaction has a pin or a pending ack
--    {seq, 'CURSOR', released, subscription}  it has not read all of it, or may read it again
--    {seq, 'UNCLAIMED', subscription}         it does not stand in the children yet
--    {seq, 'ABSENT', {subscription, ...}}     they were deleted since they came to the children
if retired then
  return {seq, 'ALREADY'}
end
local pin = redis.call('HVALS', KEYS[2])[1]
if pin then
  return {seq, 'PENDING', string.sub(pin, string.find(pin, '|', 1, true) + 1)}
end
local handed_over = {}
for i = 7, #ARGV do
  handed_over[ARGV[i]] = true
end
for _, name in ipairs(redis.call('SMEMBERS', KEYS[3])) do
  local txn = redis.call('HKEYS', ARGV[6] .. name)[1]
  if txn then
    return {seq, 'PENDING', txn}
  end
  local cursor = redis.call('HMGET', ARGV[5] .. name, 'released', 'position')
  local released = cursor[1] or cursor[2]
  if released < ARGV[4] then
    return {seq, 'CURSOR', released, name}
  end
  if not handed_over[name] then
    return {seq, 'UNCLAIMED', name}
  end
end
local absent = {}
for name in pairs(handed_over) do
  if redis.call('SISMEMBER', KEYS[3], name) == 0 then
    absent[#absent + 1] = name
  end
end
if #absent > 0 then
  return {seq, 'ABSENT', absent}
end
local contains = redis.call('HEXISTS', KEYS[4], 'contains-txn') == 1
let_through()
redis.call('HSET', KEYS[1], 'retired', contains and 'txn' or 'plain')
return {changed(), 'OK'}
