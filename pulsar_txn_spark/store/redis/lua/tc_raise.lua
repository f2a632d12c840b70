-- Raise the counter of a TC, so that it gives out none of the numbers that Pulsar's own
-- coordinator has given out.
-- KEYS[2]  {tc<N>}:txn-counter
-- ARGV[4]  lowest last counter
-- -> {seq, 'OK' | 'ALREADY', last counter}
local last = redis.call('GET', KEYS[2]) or '0'
if tonumber(last) >= tonumber(ARGV[4]) then
  return {seq, 'ALREADY', last}
end
let_through()
redis.call('SET', KEYS[2], ARGV[4])
return {changed(), 'OK', ARGV[4]}
