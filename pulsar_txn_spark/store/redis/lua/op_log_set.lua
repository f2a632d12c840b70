-- Change how operation records of a TC are gathered; every writer hears of it with its next reply.
-- KEYS[2]  {tc<N>}:op-log  hash of settings
-- ARGV[4]  enabled (0 | 1), ARGV[5] max_records, ARGV[6] max_bytes, ARGV[7] max_delay_ms
-- -> {seq, 'OK'}
redis.call('HSET', KEYS[2], 'enabled', ARGV[4], 'max_records', ARGV[5], 'max_bytes', ARGV[6],
  'max_delay_ms', ARGV[7])
return {changed(), 'OK'}
