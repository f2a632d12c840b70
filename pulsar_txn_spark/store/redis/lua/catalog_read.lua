-- Tell whether a topic is in the catalogue, and since which adding.
-- KEYS[2]  {meta}:topics, KEYS[3] {meta}:topic-stamps
-- ARGV[4]  topic
-- -> {seq, 'OK', stamp} ('': an older version has added it) | {seq, 'ABSENT'}
if redis.call('SISMEMBER', KEYS[2], ARGV[4]) == 0 then
  return {seq, 'ABSENT'}
end
return {seq, 'OK', redis.call('HGET', KEYS[3], ARGV[4]) or ''}
