-- Keep a Step and store the result of the call with which a producer has opened it, unless its claim is lost.
-- KEYS  due, call, then those of keep_step.lua
-- ARGV  those of finish.lua for one call, then those of keep_step.lua
-- Returns {what finish_call returns, the error of the Turn's record, or false} (finishing.lua and keeping.lua are put before
-- this)
local names = {results = ARGV[2], running = ARGV[3], meta = ARGV[4], dead_letters = ARGV[5]}
local ends, fault = open_ends(ARGV[6]), false
local answer = finish_call(ends, KEYS[2], ARGV[1], names, {
  id = ARGV[7], token = ARGV[8], agent = ARGV[9], status = ARGV[10], outcome = ARGV[11], kind = ARGV[12], result = ARGV[13],
  done_at = ARGV[14], failure = ARGV[15],
  before = function(has_result)
    if has_result then return end -- the Step is kept as well
    -- without a result, nobody has the Step that an earlier version has kept in a trip of its own
    if redis.call('HLEN', KEYS[3]) > 0 then redis.call('DEL', KEYS[3]) end
    fault = keep_step(2, 15)
  end,
})
close_ends(ends, KEYS[1], names)
return {answer, fault}
