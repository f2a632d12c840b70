-- Write a sink's pointer if it still is the very value that was read. Kept for ever (INV-7).
-- KEYS[2]  {sink:<id>}:pointers, KEYS[3] {sink:<id>}:current
-- ARGV[4]  query id, ARGV[5] current query id as read, ARGV[6] pointer as read, ARGV[7] new pointer
-- ARGV[8]  the query id that is alive from now on, ARGV[9] pointer of the current query as read
-- -> {seq, 'OK'} | {seq, 'CONFLICT', current query id, pointer}
local current = redis.call('GET', KEYS[3]) or ''
local pointer = redis.call('HGET', KEYS[2], ARGV[4]) or ''
local retired = redis.call('HGET', KEYS[2], current) or ''
if current ~= ARGV[5] or pointer ~= ARGV[6] or retired ~= ARGV[9] then
  return {seq, 'CONFLICT', current, pointer}
end
if pointer ~= '' then
  let_through()
end
redis.call('HSET', KEYS[2], ARGV[4], ARGV[7])
redis.call('SET', KEYS[3], ARGV[8])
return {changed(), 'OK'}
