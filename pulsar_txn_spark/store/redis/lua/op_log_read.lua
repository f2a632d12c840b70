-- Read how operation records of a TC are gathered.
-- KEYS[2]  {tc<N>}:op-log  hash of settings
-- -> {seq, 'OK', enabled, max_records, max_bytes, max_delay_ms} (nil where nothing was set)
return {seq, 'OK', unpack(redis.call('HMGET', KEYS[2], 'enabled', 'max_records', 'max_bytes',
  'max_delay_ms'))}
