-- Reads what is known of the entries of a range, together with what is left of the segment.
--
-- KEYS[1]  {seg:<id>}:log-state  (see create.lua)
-- KEYS[2]  {seg:<id>}:log-index  (see append.lua)
-- ARGV[1]  number of the first entry
-- ARGV[2]  number of the last entry
-- ARGV[3]  how many entries at most
--
-- Returns {next, trimmed, entries as of XRANGE}, or {} = no such segment.
local state = redis.call('HMGET', KEYS[1], 'next', 'trimmed')
if not state[1] then
  return {}
end
local entries = redis.call('XRANGE', KEYS[2], '1-' .. ARGV[1], '1-' .. ARGV[2], 'COUNT', ARGV[3])
return {tonumber(state[1]), tonumber(state[2]), entries}
