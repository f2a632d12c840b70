-- Let a subscription stand at the beginning of a segment whose parents it has left behind, before
-- these are deleted. Else nobody would know that it still needs this one.
-- KEYS[2]  {seg:<id>}:cursor:<subscription>, KEYS[3] {seg:<id>}:subscriptions
-- ARGV[4]  query id ('' = nobody's), ARGV[5] position before all, ARGV[6] name
-- ARGV[7]  the start that the parent's cursor stands for (see cursor_claim.lua), '' = none
-- ARGV[8]  the parent's source: where that was reset, who started before cannot take this one either
-- -> {seq, 'OK'} | {seq, 'ALREADY'} (it stands here, or the segment was deleted)
if retired or redis.call('HEXISTS', KEYS[2], 'position') == 1 then
  return {seq, 'ALREADY'}
end
-- Nothing is released yet, and the first acknowledgement says whether anything may be read again.
let_through()
redis.call('HSET', KEYS[2], 'query', ARGV[4], 'source', ARGV[8], 'position', ARGV[5], 'generation', '1')
if ARGV[7] ~= '' then
  redis.call('HSET', KEYS[2], 'planted', ARGV[7])
end
redis.call('SADD', KEYS[3], ARGV[6])
return {changed(), 'OK'}
