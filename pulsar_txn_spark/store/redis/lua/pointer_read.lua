-- Read a sink's pointer for one query.
-- KEYS[2]  {sink:<id>}:pointers  hash query id -> pointer
-- KEYS[3]  {sink:<id>}:current   the query id that is alive
-- ARGV[4]  query id
-- -> {seq, 'OK', current query id, pointer of this query, pointer of the current query}
local current = redis.call('GET', KEYS[3]) or ''
return {seq, 'OK', current, redis.call('HGET', KEYS[2], ARGV[4]) or '',
  redis.call('HGET', KEYS[2], current) or ''}
