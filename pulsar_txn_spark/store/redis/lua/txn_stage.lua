-- Stage the result of one attempt at a write slot; or declare the attempt that is current.
-- KEYS[2]  {tc<N>}:stage:<nonce>  hash '<slot>' -> current attempt, '<slot>/<attempt>' -> staged write
-- KEYS[3]  {tc<N>}:idx:stages     zset nonce by the time when it was last in use
-- ARGV[4]  'declare' | 'stage', ARGV[5] slot, ARGV[6] attempt, ARGV[7] staged write, ARGV[8] nonce
-- -> {seq, 'OK'} | {seq, 'STALE', current attempt}
local current = redis.call('HGET', KEYS[2], ARGV[5])
if ARGV[4] == 'declare' then
  if current and tonumber(current) > tonumber(ARGV[6]) then
    return {seq, 'STALE', current}
  end
  redis.call('HSET', KEYS[2], ARGV[5], ARGV[6])
  redis.call('ZADD', KEYS[3], text(now_ms()), ARGV[8])
  return {changed(), 'OK'}
end
if current ~= ARGV[6] then
  return {seq, 'STALE', current or ''}
end
redis.call('HSET', KEYS[2], ARGV[5] .. '/' .. ARGV[6], ARGV[7])
return {changed(), 'OK'}
