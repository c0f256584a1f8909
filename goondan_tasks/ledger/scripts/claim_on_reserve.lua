-- Claim a call or an event while its message is reserved. claiming.lua, mailboxes.lua and permits.lua are put before
-- this, reserve.lua after it.
-- Only messages that task_message.py has written are claimed here. All others need a claim of their own, and so do
-- events that are not the first in their mailbox. An idempotencyKey is asked for by start.lua: only the worker can tell it.
-- argument  JSON: lease (ms), ttl (s), worker, ns (prefix of all keys), most (attempts), ref (the revision that the
--           terms belong to), limits (terms of limits, as permits.lua takes them)
-- encoded   JSON of the queue's terms: tool -> {idempotent, most, limit}, or false for a tool whose calls are not claimed
--           here; of a queue of events task -> {idempotent, most, limit} (others are not claimed); '' for a queue of
--           which nothing is claimed. Terms of a tool with limits go on: the limits that all its calls have (text), the
--           scope of `serial` ('' = none), for how many seconds longer than ttl they keep what they hold.
-- A call whose limits do not let it run enters a wait queue, and its message is dropped.
-- An answer that the asking agent already has needs no handling and has no record: its verdict is told.
-- Returns false, also if the record is damaged, or what claim_call returns, then the ref and the id. If revisions are
-- followed, a call without a ref
-- runs with this one. A call of a Step that names none runs with the Step's, which only a claim of its own can find out.
-- Arguments may contain text that looks like a ref, so all matches must be right, and that of a call of a Step must be
-- where clients write it.
-- a message that was admitted from a wait queue begins with a space
local OURS = '^ ?{"headers":{"lang":"py","task":"(goondan%.[a-z_]+)","id":"([^"\\]+)","shadow":"?([^"\\]+)"?,'
local REF = 'bundleRef\\*":\\*"([^"\\]+)'
-- the beginning of a call that names its ref, in a message of a client: its texts, and what it has of a chain
local NAMED = '"body":"%[%[%],{\\"call\\":{\\"v\\":1,' .. string.rep('\\"%a+\\":\\"[^"\\]*\\",', 8)
  .. '\\"callChain\\":%[%],\\"bundleRef\\":'
local EVENT_TOOLS = { -- goondan_tasks/contract/events.py
  ['goondan.delegate'] = 'goondan__delegate',
  ['goondan.delegate_result'] = 'goondan__delegate-result',
  ['goondan.event'] = 'goondan__event',
}
-- the beginning of a plain call
local INSTANCE = '^{"v":1,"toolCallId":"[^"\\]*","toolName":"[^"\\]*","agentName":"[^"\\]*","instanceKey":"([%w_.~-]+)",'
local decoded, claims, limits
local terms_of = {} -- by queue

-- Return the terms of an event that may be claimed, or false. Where revisions are followed, no event is claimed here:
-- a Turn keeps its own revision. The record replaces the message, so an event whose record differs from the message
-- is not claimed here.
local function terms_of_event(known, agent, task, id)
  local terms = decoded.ref == '' and known[task]
  if not terms then return false end
  local record = redis.call('HMGET', decoded.ns .. 'call:' .. id, 'box', 'call', 'retried', 'approved')
  if not record[1] or record[3] or record[4] then return false end
  local call = cjson.decode(record[2])
  local is_same = call.toolName == EVENT_TOOLS[task] and call.agentName == agent and type(call.args) == 'table'
  return is_same and first_in_mailbox(decoded.ns, record[1]) == id and terms
end

local function terms_of_call(known, tool, message)
  for ref in string.gmatch(message, REF) do
    if ref ~= decoded.ref then return false end
  end
  local is_of_step = decoded.ref ~= '' and string.find(message, 'stepId', 1, true)
  if is_of_step and not string.find(message, NAMED) then return false end
  if known[tool] == false then return false end
  return known[tool] or {'0', decoded.most, 0}
end

-- Return the limits of a call as text. That of `serial` has the instance in its name, percent-encoded.
local function limits_of_call(terms, call)
  if terms[5] == '' then return terms[4] end
  local instance = string.match(call, INSTANCE) or cjson.decode(call).instanceKey
  local quoted = string.gsub(instance, '[^%w_.~-]', function(char)
    return string.format('%%%02X', string.byte(char))
  end)
  return 'seats 1 0 - serial:' .. terms[5] .. '@' .. quoted .. '\n' .. terms[4]
end

-- Ask whether a call may run; returns the verdict of its claim and the limits that it has passed. If that fails, a claim of
-- its own says why.
local function ask(queue, message, id, agent, terms, at, deadline, call, waits)
  limits = limits or open_limits(decoded.limits, claims.now)
  local text, longest = limits_of_call(terms, call)
  if string.find(call, 'timeoutSeconds', 1, true) then longest = tonumber(cjson.decode(call).timeoutSeconds) end
  local word = limits.ask({
    id = id, at = at, deadline = deadline, limits = text, agent = agent, queue = queue, wake_up = queue .. '.bell',
    message = string.byte(message) == 32 and message or ' ' .. message, waits = waits,
    ttl = decoded.ttl + math.ceil(math.max(terms[6], longest or 0)),
  })
  if word == 'wait' then return 'waiting' end
  return word == 'late' and 'limited' or 'run', word == 'go' and text
end

local function is_told(task, message)
  if task ~= 'goondan.delegate_result' then return false end
  local answer = cjson.decode(cjson.decode(message).body)[2].message
  return answer.type == 'delegate_result' and answer.awaited == true
end

local function claim_on_reserve(queue, message, tag, argument, encoded)
  local task, id, tool = string.match(message, OURS)
  local agent, kind = string.match(queue, '^agent%.([a-z0-9-]+)(.*)$')
  if not id or not agent then return false end
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
    idempotent = terms[1], most = terms[2], limit = terms[3],
    admit = terms[4] and function(...)
      local is_sound, word, permits = pcall(ask, queue, message, id, agent, terms, ...)
      return is_sound and word or 'absent', permits
    end,
  })
  if answer[1] == 'absent' or answer.err then return false end
  if answer[5] == nil then -- held or done: the message is not needed
    return {answer[1], answer[2], answer[3], answer[4], false, false, false, '', id}
  end
  answer[8], answer[9] = decoded.ref, id
  return answer
end

-- Write the keys that the claims of this reservation share. Returns what is called last, if there are limits.
local function end_claims()
  if claims then close_claims(claims, decoded.ns .. 'due', decoded.ttl) end
  return limits and limits.close
end
