-- Add calls to the record of their Turn. turn_lines.lua is put before this.
-- KEYS  turn
-- ARGV  ttl (s), line (JSON)
-- Returns the error of the record, or false
return add_line(KEYS[1], ARGV[2], ARGV[1])
