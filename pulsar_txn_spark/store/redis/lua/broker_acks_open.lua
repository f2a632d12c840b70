-- Open what a broker keeps of the acknowledgements that transactions make in a subscription of
-- Pulsar's. From then on nothing is written any more by those that have opened it before.
-- KEYS[2]  {seg:<id>}:broker-acks-owner:<subscription>  hash {owner, step, cursor}
-- KEYS[3]  {seg:<id>}:broker-acks:<subscription>        hash of records
-- KEYS[4]  {seg:<id>}:broker-subscriptions              set of names
-- ARGV[4]  subscription, ARGV[5] id of its cursor
-- ARGV[6]  'new' = the cursor is new to the store, and what is there is of one that was deleted;
--          otherwise the cursor says that it is known
-- -> {seq, 'OK', owner} | {seq, 'LOST', the cursor that is known | ''} (nothing was changed)
--    {seq, 'RETIRED'}   the segment was deleted
if retired then
  return {seq, 'RETIRED'}
end
local known = redis.call('HGET', KEYS[2], 'cursor')
if ARGV[6] == 'new' then
  redis.call('UNLINK', KEYS[3])
elseif known ~= ARGV[5] then
  return {seq, 'LOST', known or ''}
end
local owner = redis.call('HINCRBY', KEYS[2], 'owner', 1)
redis.call('HSET', KEYS[2], 'step', '0', 'cursor', ARGV[5])
redis.call('SADD', KEYS[4], ARGV[4])
return {changed(), 'OK', text(owner)}
