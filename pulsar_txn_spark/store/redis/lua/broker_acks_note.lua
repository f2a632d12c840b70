-- Note the id that a cursor is about to get. broker_acks_open.lua takes it once the cursor has it.
-- Nothing else changes: of several brokers that note an id, the cursor's own compare-and-set chooses.
-- KEYS[2]  {seg:<id>}:broker-acks-owner:<subscription>  hash {owner, step, cursor, noted, new:<id>...}
-- KEYS[3]  {seg:<id>}:broker-subscriptions              set of names
-- ARGV[4]  subscription, ARGV[5] id
-- -> {seq, 'OK'} | {seq, 'ALREADY'} (noted before, or taken)
--    {seq, 'RETIRED'}   the segment was deleted
if retired then
  return {seq, 'RETIRED'}
end
local field = 'new:' .. ARGV[5]
if redis.call('HGET', KEYS[2], 'cursor') == ARGV[5]
  or redis.call('HEXISTS', KEYS[2], field) == 1 then
  return {seq, 'ALREADY'}
end
redis.call('HSET', KEYS[2], field, text(redis.call('HINCRBY', KEYS[2], 'noted', 1)))
redis.call('SADD', KEYS[3], ARGV[4])
return {changed(), 'OK'}
