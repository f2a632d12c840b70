-- Appends one entry. Writers interleave safely: number, totals and the seal are read and
-- changed in one step. Nothing is ever created for a segment that is not there.
--
-- KEYS[1]  {seg:<id>}:log-state  (see create.lua)
-- KEYS[2]  {seg:<id>}:log        stream, id 1-<entry>: p = payload
-- KEYS[3]  {seg:<id>}:log-index  stream, same ids: w = writer, n = messages, b = bytes,
--                                t = publish time (ms), m and c = messages and bytes up to and
--                                including this entry, since the beginning of the segment
-- KEYS[4]  {seg:<id>}:birth      tag record (see _prelude.lua)
-- ARGV[1]  writer
-- ARGV[2]  number of messages
-- ARGV[3]  payload
--
-- Returns {the entry's number, '<seq> <history>'}: the entry is a change of the segment's tag, which
-- now has this state. Where the entry was lost, another one may get its number (INV-14).
-- Only the number, and no change, if the last change of the tag was another server's. Appends begin
-- no history: a transaction's pin or a raised high-position does. -1 = no such segment, -2 = sealed.
local state = redis.call('HMGET', KEYS[1], 'next', 'messages', 'bytes', 'sealed')
if not state[1] then
  return -1
end
if state[4] ~= '0' then
  return -2
end
local size = #ARGV[3]
-- %.0f: a plain tostring turns numbers from 1e14 on into 1e+14.
local messages = string.format('%.0f', tonumber(state[2]) + tonumber(ARGV[2]))
local bytes = string.format('%.0f', tonumber(state[3]) + size)
local now = redis.call('TIME')
local now_ms = string.format('%.0f', tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000))
local id = '1-' .. state[1]
redis.call('XADD', KEYS[2], id, 'p', ARGV[3])
redis.call('XADD', KEYS[3], id, 'w', ARGV[1], 'n', ARGV[2], 'b', size, 't', now_ms,
  'm', messages, 'c', bytes)
redis.call('HSET', KEYS[1], 'next', string.format('%.0f', tonumber(state[1]) + 1),
  'messages', messages, 'bytes', bytes)
local number = tonumber(state[1])
local tag = redis.call('HMGET', KEYS[4], 'seq', 'server', 'history')
local replication = redis.pcall('INFO', 'replication')
local server = type(replication) == 'string' and string.match(replication, 'master_replid:(%x+)')
if not tag[1] or (server and server ~= tag[2]) then
  return number
end
local seq = string.format('%.0f', redis.call('HINCRBY', KEYS[4], 'seq', 1))
return {number, seq .. ' ' .. (tag[3] or '')}
