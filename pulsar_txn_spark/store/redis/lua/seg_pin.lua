-- Pin a writer: no reader passes this bound until the writer's transaction is decided and
-- materialized here (INV-2). Pinning again returns the old pin.
-- KEYS[2]  {seg:<id>}:pins       hash writer -> '<bound>|<TxnId>'
-- KEYS[3]  {seg:<id>}:pin-order  zset '<bound>|<writer>', all of score 0 (lexical order)
-- KEYS[4]  {seg:<id>}:dropped    hash writer -> '<bound>|<TxnId>'
-- KEYS[5]  {seg:<id>}:closed     hash TC -> counter
-- KEYS[6]  {seg:<id>}:resolved   hash TxnId -> decision
-- KEYS[7]  {seg:<id>}:state      hash high-position, passed, contains-txn
-- ARGV[4]  writer, ARGV[5] TxnId, ARGV[6] TC, ARGV[7] counter, ARGV[8] position before all
-- -> {seq, 'OK' | 'PINNED', bound} | {seq, 'DROPPED'} | {seq, 'CLOSED'} | {seq, 'RESOLVED', decision}
--    {seq, 'DELETED'} as well if the segment was deleted
if retired then
  return {seq, 'DELETED'}
end
if redis.call('HEXISTS', KEYS[4], ARGV[4]) == 1 then
  return {seq, 'DROPPED'}
end
local closed = redis.call('HGET', KEYS[5], ARGV[6])
if closed and tonumber(ARGV[7]) < tonumber(closed) then
  return {seq, 'CLOSED'}
end
local resolved = redis.call('HGET', KEYS[6], ARGV[5])
if resolved then
  return {seq, 'RESOLVED', resolved}
end
local old = redis.call('HGET', KEYS[2], ARGV[4])
if old then
  return {seq, 'PINNED', string.sub(old, 1, string.find(old, '|', 1, true) - 1)}
end
local bound = redis.call('HGET', KEYS[7], 'high-position') or ARGV[8]
-- Readers may have passed what nobody has reported (see seg_gate.lua).
local passed = redis.call('HGET', KEYS[7], 'passed') or ''
if passed > bound then
  bound = passed
end
redis.call('HSET', KEYS[2], ARGV[4], bound .. '|' .. ARGV[5])
redis.call('ZADD', KEYS[3], 0, bound .. '|' .. ARGV[4])
redis.call('HSETNX', KEYS[7], 'contains-txn', '1')
return {changed(), 'OK', bound}
