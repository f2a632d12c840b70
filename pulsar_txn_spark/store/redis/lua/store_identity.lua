-- Read the store's identity, or give it one. Runs without the prelude.
-- KEYS[1]  {meta}:birth
-- ARGV[1]  uuid to take if there is none, ARGV[2] schema version, ARGV[3] number of TCs
-- -> {uuid, epoch, seq, schema version, number of TCs, history}
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'uuid', ARGV[1], 'epoch', '1', 'seq', '1', 'schema', ARGV[2],
    'coordinators', ARGV[3], 'registered', '1')
end
return redis.call('HMGET', KEYS[1], 'uuid', 'epoch', 'seq', 'schema', 'coordinators',
  'history')
