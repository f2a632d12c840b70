-- Take a topic out of the catalogue, unless it was added again since the caller has looked.
-- KEYS[2]  {meta}:topics, KEYS[3] {meta}:topic-stamps
-- ARGV[4]  topic, ARGV[5] stamp that the caller has read
-- -> {seq, 'OK'} | {seq, 'ALREADY'} (it is not there) | {seq, 'CONFLICT', stamp}
if redis.call('SISMEMBER', KEYS[2], ARGV[4]) == 0 then
  return {seq, 'ALREADY'}
end
local stamp = redis.call('HGET', KEYS[3], ARGV[4]) or ''
if stamp ~= ARGV[5] then
  return {seq, 'CONFLICT', stamp}
end
redis.call('SREM', KEYS[2], ARGV[4])
redis.call('HDEL', KEYS[3], ARGV[4])
return {changed(), 'OK'}
