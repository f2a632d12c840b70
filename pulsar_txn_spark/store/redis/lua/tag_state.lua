-- Register that a tag is about to be initialized ('creating') or has been ('born').
-- KEYS[2]  {meta}:tags  hash tag -> state
-- ARGV[4]  tag, ARGV[5] 'creating' | 'born' | '' (only read)
-- -> {seq, 'OK', state before}
local before = redis.call('HGET', KEYS[2], ARGV[4]) or ''
if ARGV[5] == '' or before == 'born' or before == ARGV[5] then
  return {seq, 'OK', before}
end
redis.call('HSET', KEYS[2], ARGV[4], ARGV[5])
return {changed(), 'OK', before}
