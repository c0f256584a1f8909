-- Keeps the former runs of a call in its record. This is put before the scripts that end a run without a result.
local MOST_FORMER = 4096 -- bytes

-- Add a run to the field `former`: a line 'attempt claimed_at ended_at ending worker', times in ms. A run that was
-- added before stays as it is.
-- ending  died (after the handler had started) | unstarted (died before) | overran (it runs, and its worker
--         cannot end it) | released | an error's code
local function keep_former(key, attempt, claimed_at, ended_at, ending, worker)
  local known = redis.call('HGET', key, 'former') or ''
  if not worker or #known > MOST_FORMER or string.find('\n' .. known, '\n' .. attempt .. ' ', 1, true) then return end
  local run = string.format('%s %.0f %.0f %s %s\n', attempt, tonumber(claimed_at) or ended_at, ended_at, ending, worker)
  redis.call('HSET', key, 'former', known .. run)
end
