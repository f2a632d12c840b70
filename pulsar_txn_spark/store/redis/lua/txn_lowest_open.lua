-- Tell the lowest counter that may still be open in a TC: everything below it is decided.
-- KEYS[2]  {tc<N>}:idx:txn-open, KEYS[3] {tc<N>}:txn-counter
-- -> {seq, 'OK', counter, now_ms}
local lowest = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if lowest[1] then
  return {seq, 'OK', text(tonumber(lowest[2])), text(now_ms())}
end
return {seq, 'OK', text(tonumber(redis.call('GET', KEYS[3]) or '0') + 1), text(now_ms())}
