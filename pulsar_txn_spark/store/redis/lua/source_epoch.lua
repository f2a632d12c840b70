-- Count one start of a source.
-- KEYS[2]  {meta}:source-counter
-- -> {seq, 'OK', source epoch}
let_through()
local source_epoch = redis.call('INCR', KEYS[2])
return {changed(), 'OK', source_epoch}
