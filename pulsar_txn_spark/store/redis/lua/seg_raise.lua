-- Raise high-position after an acknowledged write outside of transactions, and tell the watchers.
-- KEYS[2]  {seg:<id>}:state, KEYS[3] {seg:<id>}:events
-- ARGV[4]  acknowledged position
-- -> {seq, 'OK'} | {seq, 'ALREADY'}
--    {seq, 'ALREADY'} as well if the segment was deleted
if retired then
  return {seq, 'ALREADY'}
end
local high = redis.call('HGET', KEYS[2], 'high-position')
if high and high >= ARGV[4] then
  return {seq, 'ALREADY'}
end
redis.call('HSET', KEYS[2], 'high-position', ARGV[4])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', '1024', '*', 'type', 'new-data', 'position', ARGV[4])
return {changed(), 'OK'}
