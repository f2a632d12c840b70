-- Say that a scope is in use, or that it has ended, so that what it has staged goes.
-- KEYS[2]  {tc<N>}:stage:<nonce>, KEYS[3] {tc<N>}:idx:stages
-- ARGV[4]  'use' | 'end', ARGV[5] nonce
-- -> {seq, 'OK'} (also if there is nothing)
if not redis.call('ZSCORE', KEYS[3], ARGV[5]) and redis.call('EXISTS', KEYS[2]) == 0 then
  return {seq, 'OK'}
end
let_through()
if ARGV[4] == 'use' then
  redis.call('ZADD', KEYS[3], text(now_ms()), ARGV[5])
else
  redis.call('DEL', KEYS[2])
  redis.call('ZREM', KEYS[3], ARGV[5])
end
return {changed(), 'OK'}
