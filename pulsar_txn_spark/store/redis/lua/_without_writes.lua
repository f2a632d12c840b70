-- In front of a prelude that only looks: what it would write is left out.
local server = redis
local redis = {
  call = function(command, ...)
    return command ~= 'HSET' and server.call(command, ...)
  end,
  pcall = server.pcall,
  error_reply = server.error_reply,
}
