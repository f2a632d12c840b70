-- Stage the result of one run of a write slot; or declare the run that is current.
-- KEYS[2]  {tc<N>}:stage:<nonce>  hash '<slot>' -> current run, '<slot>/<run>' -> staged write
-- ARGV[4]  'declare' | 'stage', ARGV[5] slot, ARGV[6] run, ARGV[7] staged write
-- -> {seq, 'OK'} | {seq, 'STALE', current run}
local current = redis.call('HGET', KEYS[2], ARGV[5])
if ARGV[4] == 'declare' then
  if current and tonumber(current) > tonumber(ARGV[6]) then
    return {seq, 'STALE', current}
  end
  redis.call('HSET', KEYS[2], ARGV[5], ARGV[6])
  return {changed(), 'OK'}
end
if current ~= ARGV[6] then
  return {seq, 'STALE', current or ''}
end
redis.call('HSET', KEYS[2], ARGV[5] .. '/' .. ARGV[6], ARGV[7])
return {changed(), 'OK'}
