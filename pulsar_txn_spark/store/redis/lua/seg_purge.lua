-- Remove all that is left of a deleted segment, once its log is gone. Readers of what is left of a log
-- need the dropped writers (INV-5). The tag record stays, and with it what shuts the door.
-- KEYS[2]  {seg:<id>}:subscriptions, KEYS[3...] every other key that does not have a subscription's name
-- ARGV[4]  key prefix of cursors, ARGV[5] of pending acks, ARGV[6] of acknowledged ranges
-- ARGV[7]  key prefix of what a transaction has locked of those: <prefix><subscription>:<TxnId>
-- ARGV[8]  {seg:<id>}:dropped-groups (also one of the keys), ARGV[9] key prefix of these groups
-- ARGV[10] {seg:<id>}:broker-subscriptions (also one of the keys)
-- ARGV[11] key prefix of what brokers keep of their acknowledgements, ARGV[12] of who keeps it
-- -> {seq, 'OK'} | {seq, 'ALREADY'} | {seq, 'OPEN'} (it was not deleted: nothing is removed)
if not retired then
  return {seq, 'OPEN'}
end
local gone = 0
for _, name in ipairs(redis.call('SMEMBERS', KEYS[2])) do
  -- There are such transactions only where the whole topic was deleted (seg_fence.lua).
  for _, txn in ipairs(redis.call('HKEYS', ARGV[5] .. name)) do
    gone = gone + redis.call('UNLINK', ARGV[7] .. name .. ':' .. txn)
  end
  gone = gone + redis.call('UNLINK', ARGV[4] .. name, ARGV[5] .. name, ARGV[6] .. name)
end
for _, group in ipairs(redis.call('ZRANGE', ARGV[8], 0, -1)) do
  gone = gone + redis.call('UNLINK', ARGV[9] .. group)
end
for _, name in ipairs(redis.call('SMEMBERS', ARGV[10])) do
  gone = gone + redis.call('UNLINK', ARGV[11] .. name, ARGV[12] .. name)
end
for i = 2, #KEYS do
  gone = gone + redis.call('UNLINK', KEYS[i])
end
if gone == 0 then
  return {seq, 'ALREADY'}
end
return {changed(), 'OK'}
