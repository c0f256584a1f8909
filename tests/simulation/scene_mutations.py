"""Faults that the walks through the scenes must find, in the scripts and in the programs."""

from tests.simulation.asked_models import MODELS
from tests.simulation.busy_limits import BUSY_LIMITS
from tests.simulation.deletions import DELETIONS
from tests.simulation.foreign_fields import FOREIGN_FIELDS
from tests.simulation.handoffs import HANDOFFS
from tests.simulation.letters import LETTERS
from tests.simulation.opened_steps import STEPS
from tests.simulation.order_mutations import ORDERS
from tests.simulation.outages import OUTAGES
from tests.simulation.pauses import PAUSES
from tests.simulation.restores import RESTORES
from tests.simulation.revised_steps import REVISIONS
from tests.simulation.scenes import Scene
from tests.simulation.schedules import SCHEDULES
from tests.simulation.scripts import Mutation
from tests.simulation.shared_keys import SHARED_KEYS

_LETTERS = [
    ("a dead call is no letter", "if ended.status == 'dead' then", "if ended.status == 'never' then", ""),
    (
        "a slower operator's note counts",
        "if known < tonumber(ARGV[2]) then redis.call('HSET'",
        "if known then redis.call('HSET'",
        "",
    ),
    (
        "each operator makes a replay of its own",
        'f"replay-{record.replays + 1}-of-{record.id}"',
        'f"replay-{uuid.uuid4()}-of-{record.id}"',
        "goondan_tasks.client.letters:replay_of",
    ),
    (
        "replays are not noted",
        "run_script_calls(self._redis, script_calls)",
        "return",
        "goondan_tasks.ledger.dead_letters:DeadLetters.note_replayed",
    ),
    (
        "a letter is replayed twice",
        "if record.replayed_by is not None and not again:",
        "if False:",
        "goondan_tasks.client.letters:require_replayable",
    ),
    (
        "a call that has succeeded is replayed",
        'if record.outcome == "ok":',
        "if False:",
        "goondan_tasks.client.letters:require_replayable",
    ),
    (
        "a dropped letter stays",
        "pipe.zrem(index, *ids)",
        "pipe.ping()",
        "goondan_tasks.ledger.dead_letters:DeadLetters.remove",
    ),
    (
        "a filter selects every tool",
        "(tool is None or fnmatchcase(record.call.tool_name, str(tool)))",
        "True",
        "goondan_tasks.ledger.dead_letters:is_wanted",
    ),
    (
        "a letter without a call is run",
        "if claim.run.call.tool_name == NO_CALL_TOOL:",
        "if False:",
        "goondan_tasks.ledger.reaper:Reaper.settle",
    ),
]

_HOUSEKEEPING = "goondan_tasks.instances.housekeeping:"
_DELETIONS = [
    (
        "calls are looked for only before files are set aside",
        "calls = [*self._live_calls.all(), *self._live_calls.since(batch.held_at, self._agents())]",
        "calls = []",
        f"{_HOUSEKEEPING}Deletions._run_batch",
    ),
    (
        "calls that were accepted since the hold do not count",
        ", *self._live_calls.since(batch.held_at, self._agents())]",
        "]",
        f"{_HOUSEKEEPING}Deletions._run_batch",
    ),
    (
        "running calls do not count as live",
        "is_live = status in _LIVE or",
        'is_live = status == b"queued" or',
        f"{_HOUSEKEEPING}LiveCalls._read",
    ),
    (
        "an instance that stays is not given back",
        "self._files.give_back(directory, batch.token)",
        "pass",
        f"{_HOUSEKEEPING}Deletions._let_stay",
    ),
    ("a held instance is opened", "if held > 0 then return {'held', held} end", "", ""),
    (
        "an expired hold is forgotten",
        "redis.call('HSET', key, 'aside', before and before .. ' ' .. token or token)",
        "",
        "",
    ),
    ("a held instance is held again", "if is_held and string.match(", "if false and string.match(", ""),
    (
        "opening restores no files",
        "files.give_back(directory, token)",
        "pass",
        "workers.instances.workdirs:InstanceWorkdirs._note",
    ),
]

_AWAITED = "workers.agents.handoffs:Handoffs.awaited"
_HANDOFFS = [
    (
        "another run of a Turn makes its requests again",
        "return uuid.uuid5(",
        "return uuid.uuid4().hex or uuid.uuid5(",
        "goondan_tasks.authoring.handoff:RepeatableIds.__call__",
    ),
    (
        "a run that was replaced cancels its request",
        "if not asker.is_taken_over:\n            for one in submitted:  # until",
        "if True:\n            for one in submitted:  # until",
        _AWAITED,
    ),
    (
        "a request outlives the wait for it",
        "if not asker.is_taken_over:\n            for one in submitted:  # until",
        "if False:\n            for one in submitted:  # until",
        _AWAITED,
    ),
    (
        "an agent waits for itself",
        "if call.tool_name == DELEGATE_TOOL and target in",
        "if False and target in",
        "goondan_tasks.authoring.handoff:check_call_chain",
    ),
    (
        "an asker counts as waiting for what it only sent",
        "waiting=asker.waiting if handoff.is_awaited else 0",
        "waiting=asker.waiting",
        "tests.simulation.handoffs:handoff_call",
    ),
    (
        "an awaited answer is an event, too",
        'in_mailbox=not call.args["awaited"]',
        "in_mailbox=True",
        "goondan_tasks.ledger.reaper:Reaper.answer",
    ),
    (
        "no answer is sent",
        "call = answer_to(claim.run.call, result)",
        "pass",
        "goondan_tasks.ledger.reaper:Reaper.answer",
    ),
    ("the next event does not wait for a late handler", "if not still_runs then", "if true then", ""),
    (
        "a late handler blocks its mailbox for good",
        "if not is_late then return now end",
        "do return now end",
        "",
    ),
]

_PAUSES = [
    (
        "calls of a paused tool are claimed as they are reserved",
        "named |= dict.fromkeys(self.limiter.paused.tools(agent))",
        "pass",
        "workers.delivery.delivery:Delivery.claim_on_reserve",
    ),
    (
        "a worker does not ask whether a tool is paused",
        "is_paused = call.tool_name in self.paused.tools(call.agent_name)",
        "is_paused = False",
        "workers.delivery.limiter:CallLimiter.claim",
    ),
    ("a pause holds no call", "return (is_paused(limit.name) or has_earlier", "return (has_earlier", ""),
    (
        "a call leaves the wait queue of a pause that stands",
        "if is_pause(name) and not is_paused(name) and is_full(waiter[3]) then",
        "if is_pause(name) and is_paused(name) then\n"
        "          give_turn(name, id, waiter, waiter[5])\n          return\n"
        "        end\n        if false then",
        "",
    ),
    (
        "calls that waited for a pause change their order",
        "for i = first + 1, #earlier do front[#front + 1] = earlier[i] end",
        "for i = #earlier, first + 1, -1 do front[#front + 1] = earlier[i] end",
        "",
    ),
    (
        "more calls of a resumed tool are queued than are put in order",
        "return message and string.byte(message) == 32",
        "return false",
        "",
    ),
    (
        "a worker reads the queues of a paused agent",
        "(*standing_by, *paused)",
        "standing_by",
        "workers.pool.consumed_queues:PausedQueues.leave",
    ),
    (
        "a worker never returns to a resumed agent",
        "if back:",
        "if False:",
        "workers.pool.consumed_queues:PausedQueues.leave",
    ),
    (
        "a paused tool is not resumed",
        "pipe.hdel(self._keys.paused, found)",
        "pipe.hdel(self._keys.paused, agent)",
        "goondan_tasks.fleet.pauses:Pauses.resume",
    ),
]

_STEPS = [
    (
        "a run whose claim is lost keeps its Step",
        "local ends, fault = open_ends(ARGV[6]), false",
        "local ends, fault = open_ends(ARGV[6]), keep_step(2, 15)",
        "",
    ),
    ("a Step is opened and not kept", "fault = keep_step(2, 15)", "", ""),
    (
        "a tool that is not in the catalog is run",
        "raise not_in_catalog(call.tool_name, (item.name for item in catalog))",
        "return registry.known(call.agent_name, call.tool_name, turn_of(call)) or registry.bound("
        "call.agent_name, 'bash__plain')",
        "workers.turns.catalog_guard:CatalogGuard._admit_by_policy",
    ),
    (
        "the lead does not look into the catalog",
        "return step.catalog.item(name) is not None and",
        "return",
        "workers.turns.catalog_guard:CatalogGuard.admits",
    ),
    (
        "a Step has calls of other Turns",
        "if known is None or not known.step.record.is_of(call):",
        "if known is None:",
        "workers.turns.steps:Steps._require",
    ),
    (
        "the next Step lacks what the one before has registered",
        "dynamic.begin_step(call.agent_name, turn, registered=names, gone=left.unregistered)",
        "left = type(left)()",
        "workers.turns.steps:Steps.prepare",
    ),
    (
        "other workers are not told which tools a call has dropped",
        "patiently(partial(self.store.note_unregistered, call.step_id, names))",
        "pass",
        "workers.turns.steps:Steps.note_unregistered",
    ),
    (
        "a Step that could not be opened is asked for again",
        'return f"{STEP_TOOL}-{index}.{failures + 1}" if failures else f"{STEP_TOOL}-{index}"',
        'return f"{STEP_TOOL}-{index}"',
        "goondan_tasks.client.turns:opening_id",
    ),
    (
        "calls are not noted in their Turn",
        "return add_line(KEYS[1], ARGV[2], ARGV[1])",
        "return false",
        "",
    ),
]

_MODEL_CALLS = "workers.thinking.model_calls:Models"
_MODELS = [
    (
        "another run of a Turn asks what it likes",
        "earlier = await asyncio.to_thread(patiently, partial(self._earlier, model, place))",
        "pass",
        f"{_MODEL_CALLS}.ask",
    ),
    (
        "nobody knows what a Turn has asked",
        "redis.call('HSET', KEYS[3], ARGV[3], ARGV[4])",
        "",
        "",
    ),
    (
        "an answer that is stored is paid again",
        "if has_ended or (status and is_stored) else None",
        "if not has_ended and status and is_stored else None",
        f"{_MODEL_CALLS}._earlier",
    ),
    (
        "all requests of a Turn have one place",
        "self._count += 1",
        "self._count = 1",
        "workers.thinking.model_calls:AskedRequests.next_place",
    ),
]

#: by name: the scene in which it must be found, and the fault
_SHARED_KEYS = [
    ("nobody makes the deadlines again", "rebuild(KEYS[1], ns, now, tonumber(ARGV[2]), ARGV[6])", "", ""),
    (
        "deadlines that are overwritten stay so",
        "if kind ~= 'zset' and kind ~= 'none' then redis.call('DEL', due) end",
        "",
        "",
    ),
    (
        "deadlines are made again without leases",
        "elseif status == 'running' or status == 'done' and record[3] then",
        "elseif false then",
        "",
    ),
    (
        "leases of days stay so",
        "for _, ids in ipairs({running, expired, begun}) do",
        "for _, ids in ipairs({expired, begun}) do",
        "",
    ),
    (
        "calls are pending for days",
        "for _, ids in ipairs({running, expired, begun}) do",
        "for _, ids in ipairs({running, begun}) do",
        "",
    ),
    (
        "scheduled calls wait for days",
        "for _, ids in ipairs({running, expired, begun}) do",
        "for _, ids in ipairs({running, expired}) do",
        "",
    ),
    (
        "reservations of days stay so",
        "ipairs({{'+inf', now + ARGV[1]}, {now - ARGV[1], '-inf'}})",
        "ipairs({{now - ARGV[1], '-inf'}})",
        "",
    ),
    (
        "an answer is lost with the deadlines",
        "accept_call({KEYS[7], takes(KEYS[1], 'zset') and KEYS[1],",
        "pcall(accept_call, {KEYS[7], KEYS[1],",
        "",
    ),
    ("sweeps stop at a damaged key", "redis.pcall('GET', KEYS[2])", "redis.call('GET', KEYS[2])", ""),
]

_BUSY_LIMITS = [
    (
        "tokens count for less than a minute",
        "for i = 1, limit.period / SLOT do",
        "for i = 1, limit.period / SLOT - 2 do",
        "",
    ),
    (
        "tokens let a later request overtake",
        "(tokens_time(limit) > now or has_earlier(limit.name, id, at)) and 'wait'",
        "tokens_time(limit) > now and 'wait'",
        "",
    ),
    (
        "reserve forgets serial",
        "if terms[5] == '' then return terms[4] end",
        "if true then return terms[4] end",
        "",
    ),
    (
        "key is free while its call waits for its next run",
        "or status == 'pending' or status == 'scheduled'",
        "or status == 'pending'",
        "",
    ),
    (
        "a call that has run gives its key away",
        "if not has_run and redis.call('HGET', states .. held.name, 'owner') == id then",
        "if redis.call('HGET', states .. held.name, 'owner') == id then",
        "",
    ),
    (
        "serial is forgotten",
        "if self.serial_scope is None:",
        "if True:",
        "goondan_tasks.ledger.limiter:Limits._serial",
    ),
    ("rate forgets the starts of the dead", "if not record[2] and record[10] then", "if false then", ""),
    (
        "limits take over a permit in use",
        "if not last[1] or tonumber(last[2]) >= 0 then return false end",
        "if not last[1] then return false end",
        "",
    ),
    (
        "a mark keeps no key in the record",
        "redis.call('HSET', key, 'permits', limit .. '\\n' .. permits)",
        "do end",
        "",
    ),
    (
        "results of calls with keys are kept without their outcome",
        "local has_key = permits and string.sub(permits, 1, 4) == 'key '",
        "local has_key = false",
        "",
    ),
    (
        "a look to come keeps the permits of the dead",
        "if since_look >= 0 and since_look < pause / 2 then return end",
        "if since_look < pause / 2 then return end",
        "",
    ),
    (
        "a rate counts starts to come",
        "redis.call('ZREMRANGEBYSCORE', key, '(' .. now + limit.period, '(' .. RESERVED)",
        "",
        "",
    ),
    (
        "looks that are planned too late stay so",
        "ipairs({{'-inf', now}, {'(' .. now + 2 * pause, '+inf'}})",
        "ipairs({{'-inf', now}})",
        "",
    ),
    ("reserve pushes no messages of admitted calls", "if close then close() end", "", ""),
]

_FOREIGN_FIELDS = [
    (
        "deadlines are made again of any number",
        "is_sound and moment or otherwise",
        "tonumber(record[2]) or otherwise",
        "",
    ),
    (
        "a reservation of several stops at a record that cannot be read",
        "local is_sound, claim = pcall(claim_on_reserve, queue, message, tag, ARGV[5], terms)",
        "local is_sound, claim = true, claim_on_reserve(queue, message, tag, ARGV[5], terms)",
        "",
    ),
    (
        "a sweep stops at a record that cannot be read",
        "local is_sound, row = pcall(take, id)",
        "local is_sound, row = true, take(id)",
        "",
    ),
]

_RESTORES = [
    (
        "a message leaves although Redis has lost its record",
        "local is_without = not status or status == 'queued'",
        "local is_without = status == 'queued'",
        "",
    ),
    (
        "start marks a call that Redis has lost",
        "elseif record[1] ~= token then\n",
        "elseif record[3] and record[1] ~= token then\n",
        "",
    ),
    (
        "finish stores the result of a call that Redis has lost",
        "if record[1] ~= ended.token and not record.err then return 0 end",
        "if record[1] ~= ended.token and record[10] and not record.err then return 0 end",
        "",
    ),
    (
        "renew keeps the lease of a call that Redis has lost",
        "if record[1] == token then\n    if record[2] then\n",
        "if record[1] == token or redis.call('EXISTS', KEYS[i]) == 0 then\n    if record[2] then\n",
        "",
    ),
    (
        "an event that Redis has lost is recorded again by its message",
        "if ARGV[19] == '1' then return {'absent', 0, 0, 0} end",
        "",
        "",
    ),
]

_SCHEDULES = [
    ("a slot is not compared", " or not by_hand and state[2] ~= ARGV[3] then", " then", ""),
    (
        "a slot that was fired stays the next one",
        "redis.call('HSET', KEYS[1], 'next', ARGV[5], 'at', ARGV[6])",
        "redis.call('HSET', KEYS[1], 'at', ARGV[6])",
        "",
    ),
    (
        "a schedule goes on before its slot is accepted",
        "local is_open = note_ended(KEYS[1], KEYS[3], ns)\n",
        "if not by_hand then redis.call('HSET', KEYS[1], 'next', ARGV[5], 'at', ARGV[6]) end\n"
        "local is_open = note_ended(KEYS[1], KEYS[3], ns)\n",
        "",
    ),
    ("a run that is sent twice is fired twice", "if by_hand and answer then return word end", "do end", ""),
    ("an older bundle replaces a newer one", "if known and known > since then return -1 end", "do end", ""),
    (
        "a newer bundle loses the next slot",
        "if state[2] == ARGV[at + 3] and is_slot(state[3], state[4]) then slot, due = state[3], state[4] end",
        "do end",
        "",
    ),
    ("a newer bundle resumes what is paused", "if state[5] then slot, due = '', '' end", "do end", ""),
    (
        "a schedule that is taken out keeps its slots",
        "redis.call('DEL', ns .. 'schedule:' .. name, ns .. 'schedule-runs:' .. name)",
        "do end",
        "",
    ),
    (
        "missed slots are not counted",
        "if ARGV[7] ~= '0' then count('missed', ARGV[7]) end",
        "do end",
        "",
    ),
]

_REVISIONS = [
    (
        "a call that names another revision is claimed early",
        "if ref ~= decoded.ref then return false end",
        "",
        "",
    ),
    (
        "a call of a Step is claimed early because of its arguments",
        "if is_of_step and not string.find(message, NAMED) then return false end",
        "if is_of_step and not string.find(message, REF) then return false end",
        "",
    ),
    (
        "an early claim says no revision",
        "answer[8], answer[9] = decoded.ref, id",
        "answer[8], answer[9] = '', id",
        "",
    ),
    ("a Step is opened again", "if kept then return {kept, false} end", "", ""),
    (
        "a Step that is not kept counts as the last one",
        "if kept then return {kept, false} end",
        "if kept then\n  if KEYS[4] then redis.call('SET', KEYS[4], ARGV[4], 'EX', ARGV[5]) end\n"
        "  return {kept, false}\nend",
        "",
    ),
    (
        "a call of a Step gets the active revision",
        "ref = self._ref_of_step(call) or self._active.ref",
        "ref = self._active.ref",
        "workers.revisions.revisions:Revisions.fixed",
    ),
]

SCENE_MUTATIONS: dict[str, tuple[Scene, Mutation]] = {
    name: (scene, Mutation(name, old, new, where))
    for scene, table in (
        (LETTERS, _LETTERS),
        (DELETIONS, _DELETIONS),
        (HANDOFFS, _HANDOFFS),
        (PAUSES, _PAUSES),
        (SHARED_KEYS, _SHARED_KEYS),
        (OUTAGES, [(*row, "") for row in ORDERS]),
        (STEPS, _STEPS),
        (MODELS, _MODELS),
        (BUSY_LIMITS, _BUSY_LIMITS),
        (FOREIGN_FIELDS, _FOREIGN_FIELDS),
        (RESTORES, _RESTORES),
        (REVISIONS, _REVISIONS),
        (SCHEDULES, _SCHEDULES),
    )
    for name, old, new, where in table
}
