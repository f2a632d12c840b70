-- List transactions from an index: open ones by deadline, or final ones.
-- KEYS[2]  index (zset)
-- ARGV[4]  highest score ('+inf'), ARGV[5] how many at most, ARGV[6] lowest score (none = all)
-- -> {seq, 'OK', now_ms, member, score...}
local result = redis.call('ZRANGEBYSCORE', KEYS[2], ARGV[6] or '-inf', ARGV[4], 'WITHSCORES',
  'LIMIT', '0', ARGV[5])
table.insert(result, 1, text(now_ms()))
table.insert(result, 1, 'OK')
table.insert(result, 1, seq)
return result
