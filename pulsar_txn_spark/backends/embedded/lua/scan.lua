-- Reads what is known of the entries of a range, together with what is left of the segment.
--
-- KEYS[1]  {seg:<id>}:log-state  (see create.lua)
-- KEYS[2]  {seg:<id>}:log-index  (see append.lua)
-- KEYS[3]  {seg:<id>}:log        (see append.lua)
-- ARGV[1]  number of the first entry
-- ARGV[2]  number of the last entry
-- ARGV[3]  how many entries at most
-- ARGV[4]  how many bytes of payloads at most: if there are more, none of them is returned
--
-- Returns {next, trimmed, entries, payloads, both as of XRANGE}, or {} = no such segment.
local state = redis.call('HMGET', KEYS[1], 'next', 'trimmed')
if not state[1] then
  return {}
end
local entries = redis.call('XRANGE', KEYS[2], '1-' .. ARGV[1], '1-' .. ARGV[2], 'COUNT', ARGV[3])
local payloads, size = {}, 0
for _, entry in ipairs(entries) do
  local fields = entry[2]
  for at = 1, #fields, 2 do
    if fields[at] == 'b' then
      size = size + tonumber(fields[at + 1])
    end
  end
end
if #entries > 0 and size <= tonumber(ARGV[4]) then
  payloads = redis.call('XRANGE', KEYS[3], entries[1][1], entries[#entries][1])
end
return {tonumber(state[1]), tonumber(state[2]), entries, payloads}
