-- Store the results of calls whose claims are still held, end the claims and notify all waiting clients.
-- KEYS  due, call...
-- ARGV  record TTL (s), prefixes (results, running, meta, dead letters; see finishing.lua), terms of limits (permits.lua);
--       then for each call: id, token, agent, final status, outcome, kind (see finish_call), result (JSON),
--       time (ISO 8601), failure (see failures.lua)
-- Returns what finish_call returns for each call, and if one of them had limits what `close` in permits.lua does
-- (finishing.lua is put before this).
local names = {results = ARGV[2], running = ARGV[3], meta = ARGV[4], dead_letters = ARGV[5]}
local answers, ends = {}, open_ends(ARGV[6])
for at = 2, #KEYS do
  local base = 6 + 9 * (at - 2)
  answers[at - 1] = finish_call(ends, KEYS[at], ARGV[1], names, {
    id = ARGV[base + 1], token = ARGV[base + 2], agent = ARGV[base + 3], status = ARGV[base + 4],
    outcome = ARGV[base + 5], kind = ARGV[base + 6], result = ARGV[base + 7], done_at = ARGV[base + 8],
    failure = ARGV[base + 9],
  })
end
close_ends(ends, KEYS[1], names)
return answers
