-- Open a coordinator of Pulsar's for the broker that owns it now. From then on nothing is created
-- any more by those that have opened it before.
-- KEYS[2]  {tc<N>}:pulsar-epochs  hash TC id of Pulsar's -> how often it was opened
-- ARGV[4]  TC id of Pulsar's
-- -> {seq, 'OK', epoch}
let_through()
local epoch = redis.call('HINCRBY', KEYS[2], ARGV[4], 1)
return {changed(), 'OK', text(epoch)}
