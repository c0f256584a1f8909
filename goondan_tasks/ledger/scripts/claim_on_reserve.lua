-- Claim a call or an event in the trip that reserves its message; reserve.lua is put after this, claiming.lua
-- and mailboxes.lua before.
-- Only for what a producer of ours has queued, as task_message.py writes it: everything else, a call that
-- must pass a limit first too, or an event that is not the first in its mailbox, is claimed on its own.
-- argument  JSON: lease (ms), ttl (s), worker, ns (what all keys begin with), most (attempts), ref (the revision
--           that terms are of)
-- terms     JSON: tool -> {idempotent, most}, or false for one that has limits; of a queue of events task -> the same,
--           for those that are claimed; or '' for a queue whose messages are left alone
-- An answer that its asker has already needs no handling, and has no record: its verdict is told.
-- Returns what claim_call returns, or false. It is followed by the ref, if revisions are followed: a call that
-- names none is run with that one. But one of a Step with the Step's, which only a claim on its own finds out.
-- What looks like a ref may be in the arguments, which come first: so every one has to be right.
local OURS = '^{"headers":{"lang":"py","task":"(goondan%.[a-z_]+)","id":"([^"\\]+)","shadow":"?([^"\\]+)"?,'
local REF = 'bundleRef\\*":\\*"([^"\\]+)'
local EVENT_TOOLS = { -- goondan_tasks/events.py
  ['goondan.delegate'] = 'goondan__delegate',
  ['goondan.delegate_result'] = 'goondan__delegate-result',
  ['goondan.event'] = 'goondan__event',
}
local decoded, claims
local terms_of = {} -- each queue

-- Return the terms of an event that may be claimed: none where revisions are followed, a Turn keeps to its own.
-- The record takes the place of the message. One that says something else is left to be read with care.
local function terms_of_event(known, agent, task, id)
  local terms = decoded.ref == '' and known[task]
  if not terms then return false end
  local record = redis.call('HMGET', decoded.ns .. 'call:' .. id, 'box', 'call', 'retried', 'approved')
  if not record[1] or record[3] or record[4] then return false end
  local call = cjson.decode(record[2])
  local is_it = call.toolName == EVENT_TOOLS[task] and call.agentName == agent and type(call.args) == 'table'
  return is_it and first_in_mailbox(decoded.ns, record[1]) == id and terms
end

local function terms_of_call(known, tool, message)
  local is_named = false
  for ref in string.gmatch(message, REF) do
    if ref ~= decoded.ref then return false end
    is_named = true
  end
  if decoded.ref ~= '' and not is_named and string.find(message, 'stepId', 1, true) then return false end
  if known[tool] == false then return false end
  return known[tool] or {'0', decoded.most}
end

local function is_told(task, message)
  if task ~= 'goondan.delegate_result' then return false end
  local answer = cjson.decode(cjson.decode(message).body)[2].message
  return answer.type == 'delegate_result' and answer.awaited == true
end

local function claim_on_reserve(queue, message, tag, argument, encoded)
  local task, id, tool = string.match(message, OURS)
  local agent, kind = string.match(queue, '^agent%.([a-z0-9-]+)(.*)$')
  if not id or not agent or string.find(message, 'idempotencyKey', 1, true) then return false end
  decoded = decoded or cjson.decode(argument)
  terms_of[queue] = terms_of[queue] or encoded ~= '' and cjson.decode(encoded)
  local known, terms = terms_of[queue], false
  if kind == '.events' then
    local is_sound, has_been_told = pcall(is_told, task, message)
    if is_sound and has_been_told then return {'told', 0, 0, 0, false, false, false, '', id} end
    if not known then return false end
    is_sound, terms = pcall(terms_of_event, known, agent, task, id)
    if not is_sound then return false end
  elseif known and kind == '' and task == 'goondan.tool_call' then
    terms = terms_of_call(known, tool, message)
  end
  if not terms then return false end
  local ns = decoded.ns
  local keys = {ns .. 'call:' .. id, ns .. 'due', ns .. 'running:' .. agent, ns .. 'calls:' .. agent}
  claims = claims or open_claims()
  local answer = claim_call(claims, keys, id, tag, {
    worker = decoded.worker, lease = decoded.lease, ttl = decoded.ttl,
    idempotent = terms[1], most = terms[2],
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
  if claims then close_claims(claims, decoded.ns .. 'due', decoded.ttl) end
end
