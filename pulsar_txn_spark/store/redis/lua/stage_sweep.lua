-- Delete what scopes have staged that died before their transaction began, or in a replay. What
-- belongs to a transaction goes with it (txn_forget_ops.lua).
-- KEYS[2]  {tc<N>}:idx:stages, KEYS[3] {tc<N>}:nonces
-- ARGV[4]  key prefix of stages, ARGV[5] how long a scope may be out of use, in milliseconds
-- ARGV[6]  how many to read
-- -> {seq, 'OK', how many were read, how many were deleted}
local now = now_ms()
local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', text(now - tonumber(ARGV[5])), 'LIMIT', '0',
  ARGV[6])
local deleted = 0
if #old > 0 then
  let_through()
end
for _, nonce in ipairs(old) do
  if redis.call('HEXISTS', KEYS[3], nonce) == 1 then
    redis.call('ZADD', KEYS[2], text(now), nonce)
  else
    redis.call('DEL', ARGV[4] .. nonce)
    redis.call('ZREM', KEYS[2], nonce)
    deleted = deleted + 1
  end
end
if #old > 0 then
  return {changed(), 'OK', #old, deleted}
end
return {seq, 'OK', 0, 0}
