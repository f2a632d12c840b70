-- Let a subscription exist in a segment from the start of its query on, owned by nobody until a task
-- claims it (INV-13). A cursor that is there stays as it is.
-- KEYS[2]  {seg:<id>}:cursor:<subscription>, KEYS[3] {seg:<id>}:subscriptions
-- KEYS[4]  {seg:<id>}:state
-- ARGV[4]  position, ARGV[5] name
-- ARGV[6]  the start that it stands for (see cursor_claim.lua), '' = none
-- ARGV[7]  '1' if it may begin behind what retention has let go, '' if that is for the caller to find
-- -> {seq, 'OK', position} | {seq, 'ALREADY', position} | {seq, 'DELETED'}
if retired then
  return {seq, 'DELETED'}
end
local present = redis.call('HGET', KEYS[2], 'position')
if present then
  return {seq, 'ALREADY', present}
end
local position = ARGV[4]
local trimmed = redis.call('HGET', KEYS[4], 'trim-to')
if ARGV[7] == '1' and trimmed and trimmed > position then
  position = trimmed
end
redis.call('HSET', KEYS[2], 'query', '', 'source', '0', 'position', position, 'generation', '1',
  'released', position)
if ARGV[6] ~= '' then
  redis.call('HSET', KEYS[2], 'planted', ARGV[6])
end
redis.call('SADD', KEYS[3], ARGV[5])
return {changed(), 'OK', position}
