-- End the reservation of a message that is not needed any more.
-- KEYS  in-flight hash, in-flight index; then, if something that the call's record says has replaced the message, that
--       record
-- ARGV  tag
-- Returns 1, or 0 if the message stays in flight until its reservation is overdue: Redis has lost what replaced it (a
-- replica took over, or a copy was restored), and the call has nothing else.
if KEYS[3] then
  local record = redis.pcall('HMGET', KEYS[3], 'status', 'parked', 'waiting')
  local status = record[1]
  local is_without = not status or status == 'queued' and not record[2] and not record[3]
  if is_without and not record.err then return 0 end
end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
