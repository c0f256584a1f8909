-- Claim a call in the trip that reserves its message; reserve.lua is put after this, claiming.lua before.
-- Only for what a producer of ours has queued, as task_message.py writes it: everything else, a call that
-- must pass a limit first too, is claimed on its own.
-- argument  JSON: lease (ms), ttl (s), worker, call, due, running, calls (keys or their prefixes), most
--           (attempts), ref (the revision that terms are of), terms: agent -> tool -> {idempotent, most},
--           or false for one that has limits; calls of other agents are left alone
-- Returns what claim_call returns, or false. It is followed by the ref, if revisions are followed: a call that
-- names none is run with that one. But one of a Step with the Step's, which only a claim on its own finds out.
-- What looks like a ref may be in the arguments, which come first: so every one has to be right.
local OURS = '^{"headers":{"lang":"py","task":"goondan%.tool_call","id":"([^"\\]+)","shadow":"([^"\\]+)"'
local REF = 'bundleRef\\*":\\*"([^"\\]+)'
local decoded, claims
local function claim_on_reserve(queue, message, tag, argument)
  local id, tool = string.match(message, OURS)
  local agent = string.match(queue, '^agent%.([a-z0-9-]+)$')
  if not id or not agent or string.find(message, 'idempotencyKey', 1, true) then return false end
  decoded = decoded or cjson.decode(argument)
  local is_named = false
  for ref in string.gmatch(message, REF) do
    if ref ~= decoded.ref then return false end
    is_named = true
  end
  if decoded.ref ~= '' and not is_named and string.find(message, 'stepId', 1, true) then return false end
  local known = decoded.terms[agent]
  local terms = known and known[tool]
  if not known or terms == false then return false end
  local keys = {decoded.call .. id, decoded.due, decoded.running .. agent, decoded.calls .. agent}
  claims = claims or open_claims()
  local answer = claim_call(claims, keys, id, tag, {
    worker = decoded.worker, lease = decoded.lease, ttl = decoded.ttl,
    idempotent = terms and terms[1] or '0', most = terms and terms[2] or decoded.most,
  })
  if answer[1] == 'absent' then return false end
  if answer[5] == nil then -- held or done: its message is not needed any more
    return {answer[1], answer[2], answer[3], answer[4], false, false, false, '', id}
  end
  answer[8], answer[9] = decoded.ref, id
  return answer
end

-- Write what the claims of this reservation have in common.
local function end_claims()
  if claims then close_claims(claims, decoded.due, decoded.ttl) end
end
