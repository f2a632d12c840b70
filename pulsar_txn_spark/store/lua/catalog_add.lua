-- Add a topic to the catalogue, or take it out.
-- KEYS[2]  {meta}:topics  set of full topic names
-- ARGV[4]  topic, ARGV[5] 'add' | 'remove'
-- -> {seq, 'OK'}
if ARGV[5] == 'add' then
  redis.call('SADD', KEYS[2], ARGV[4])
else
  redis.call('SREM', KEYS[2], ARGV[4])
end
return {changed(), 'OK'}
