-- Note the state of a sink's own tag that a commit has seen. A later batch must find it in the past of
-- that tag (INV-14). In a cluster one of the two tags can lose what the other one keeps.
-- KEYS[2]  {query:<id>}:sinks-seen  hash sink -> '<seq> <history>' of its tag
-- ARGV[4]  sink, ARGV[5] the number, ARGV[6] the history that it belongs to
-- -> {seq, 'OK' | 'ALREADY'}  ALREADY as well if a later one is noted
local noted = redis.call('HGET', KEYS[2], ARGV[4])
if noted and tonumber(string.match(noted, '^%d+')) >= tonumber(ARGV[5]) then
  return {seq, 'ALREADY'}
end
let_through()
redis.call('HSET', KEYS[2], ARGV[4], ARGV[5] .. ' ' .. ARGV[6])
return {changed(), 'OK'}
