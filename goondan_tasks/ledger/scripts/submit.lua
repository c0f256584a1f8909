-- Accept a call: its record, its place in the indexes and its message, or nothing.
-- KEYS  call, due, calls:<agent>, queue, its bell
-- ARGV  id, call JSON, digest, producer, the call's own deadline in ms ('' = none), queue timeout ms,
--       record TTL s, message ('' = sent by other means), and the indexes of traces that it belongs into;
--       an event belongs into one, and has the namespace and its mailbox then
-- Returns as accept_call does (accepting.lua stands before this).
return accept_call(KEYS, {
  id = ARGV[1], call = ARGV[2], digest = ARGV[3], producer = ARGV[4], deadline = ARGV[5],
  patience = ARGV[6], ttl = ARGV[7], message = ARGV[8], indexes = ARGV[9],
  ns = ARGV[10], box = ARGV[11],
})
