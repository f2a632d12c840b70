-- Tell the id of a tag's newest event: who follows the stream from here on misses nothing that comes
-- after this step.
-- KEYS[2]  {<tag>}:events (stream)
-- -> {seq, 'OK', id} ('0-0' = there was never an event)
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
return {seq, 'OK', newest[1] and newest[1][1] or '0-0'}
