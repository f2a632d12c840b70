-- Register what a source reads in a micro-batch, so that the sink can acknowledge it.
-- KEYS[2]  {query:<id>}:plans:<batch id>  hash source -> plan
-- KEYS[3]  {query:<id>}:batches           zset batch id by batch id
-- ARGV[4]  source (unique to a start of it), ARGV[5] plan, ARGV[6] batch id
-- ARGV[7]  key prefix of plans, ARGV[8] how many batches are kept
-- -> {seq, 'OK' | 'ALREADY'}
if redis.call('HGET', KEYS[2], ARGV[4]) == ARGV[5] then
  return {seq, 'ALREADY'}
end
redis.call('HSET', KEYS[2], ARGV[4], ARGV[5])
redis.call('ZADD', KEYS[3], ARGV[6], ARGV[6])
-- Spark replays its last batch only: older plans can go, a bounded number at a time. A batch that an
-- operator runs again has a lower id than those that are kept, and needs its plan all the same.
local old = redis.call('ZRANGE', KEYS[3], 0, -(tonumber(ARGV[8]) + 1))
for i = 1, math.min(#old, 16) do
  if old[i] ~= ARGV[6] then
    redis.call('DEL', ARGV[7] .. old[i])
    redis.call('ZREM', KEYS[3], old[i])
  end
end
return {changed(), 'OK'}
