-- Raise high-position after an acknowledged write outside of transactions, and tell the watchers. A
-- broker does so for each transaction of a client of Pulsar's own, and its watchers see nothing yet.
-- KEYS[2]  {seg:<id>}:state, KEYS[3] {seg:<id>}:events
-- ARGV[4]  acknowledged position, ARGV[5] 'quiet' = tell nobody
-- -> {seq, 'OK'} | {seq, 'ALREADY'}
--    {seq, 'ALREADY'} as well if the segment was deleted
if retired then
  return {seq, 'ALREADY'}
end
local high = redis.call('HGET', KEYS[2], 'high-position')
if high and high >= ARGV[4] then
  return {seq, 'ALREADY'}
end
let_through()
redis.call('HSET', KEYS[2], 'high-position', ARGV[4])
if ARGV[5] ~= 'quiet' then
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', '1024', '*', 'type', 'new-data', 'position', ARGV[4])
end
return {changed(), 'OK'}
