-- Add counts of a process to those of everybody. Not repeated: a lost reply may lose counts, and
-- never doubles any.
-- KEYS[2]  {tc<N>}:metrics  hash field -> count
-- ARGV[4], ARGV[5] field and amount, and so on
-- -> {seq, 'OK'}
let_through()
for i = 4, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[2], ARGV[i], ARGV[i + 1])
end
return {seq, 'OK'}
