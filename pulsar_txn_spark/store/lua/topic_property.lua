-- Set a property of a topic, or remove it.
-- KEYS[2]  {topic:<name>}:topology, KEYS[3] {topic:<name>}:properties  hash name -> value
-- ARGV[4]  name, ARGV[5] 'set' | 'remove', ARGV[6] value
-- -> {seq, 'OK'} | {seq, 'ABSENT'} (no such topic, or no such property to remove)
if redis.call('EXISTS', KEYS[2]) == 0 then
  return {seq, 'ABSENT'}
end
if ARGV[5] == 'set' then
  redis.call('HSET', KEYS[3], ARGV[4], ARGV[6])
elseif redis.call('HDEL', KEYS[3], ARGV[4]) == 0 then
  return {seq, 'ABSENT'}
end
return {changed(), 'OK'}
