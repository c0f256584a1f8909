"""Faults that the walks must find: each is a change of the scripts' text."""

from tests.simulation.limit_mutations import LIMIT_MUTATIONS
from tests.simulation.scripts import Mutation

_TABLE = [
    ("finish takes any token", "if record[1] ~= ended.token and not record.err then return 0 end", ""),
    (
        "finish ends a cancelled call as ok",
        "if record[3] and ended.kind ~= 'cancelled' then return -1 end",
        "",
    ),
    (
        "finish leaves the stream open",
        "if record[12] or ended.is_event then end_stream(",
        "if false then end_stream(",
    ),
    ("submit makes no stream", "    open_stream(new.ns, new.id, new.ttl)\n", ""),
    (
        "a stream keeps its lifetime at the end",
        "redis.pcall('EXPIRE', key, tonumber(keep)",
        "local _ = (tonumber(keep)",
    ),
    ("finish keeps the lease", "if #ends.ids > 0 then redis.pcall('ZREM', due, unpack(ends.ids)) end", ""),
    (
        "finish keeps the call among those that run",
        "do redis.pcall('ZREM', names.running .. agent, unpack(ids)) end",
        "do end",
    ),
    (
        "finish gives the record no lifetime",
        "  redis.call('EXPIRE', key, ttl)\nend\n\n-- End one run.",
        "  redis.call('PERSIST', key)\nend\n\n-- End one run.",
    ),
    (
        "finish stops at a damaged record",
        "local record = redis.pcall('HMGET', key, 'token', 'producers'",
        "local record = redis.call('HMGET', key, 'token', 'producers'",
    ),
    (
        "start takes any token",
        "elseif record[1] ~= token then\n    answers[at - 1] = 0",
        "elseif false then",
    ),
    ("start ignores a cancel", "  elseif record[2] then\n    answers[at - 1] = -1", "  elseif false then"),
    (
        "start leaves no mark",
        "redis.call('HDEL', key, 'notStarted', 'spared', 'renewedAt')",
        "redis.call('HDEL', key, 'spared', 'renewedAt')",
    ),
    (
        "start renews no claim that was spared",
        "redis.call('HDEL', key, 'notStarted', 'spared', 'renewedAt')",
        "redis.call('HDEL', key, 'notStarted')",
    ),
    (
        "start renews no lease",
        "redis.call('ZADD', KEYS[1], 'XX', unpack(leases))",
        "",
    ),
    (
        "start stops at a damaged record",
        "local record = redis.pcall('HMGET', KEYS[at], 'token', 'cancelled', 'status')",
        "local record = redis.call('HMGET', KEYS[at], 'token', 'cancelled', 'status')",
    ),
    (
        "renew takes any token",
        "if record[1] == token then\n    if record[2] then",
        "if true then\n    if record[2] then",
    ),
    (
        "renew renews nothing",
        "redis.call('ZADD', KEYS[1], now + ARGV[1], id)\n    redis.call('HDEL', KEYS[i], 'spared'",
        "redis.call('HDEL', KEYS[i], 'spared'",
    ),
    (
        "renew stops at a damaged record",
        "local record = redis.pcall('HMGET', KEYS[i], 'token', 'box')",
        "local record = redis.call('HMGET', KEYS[i], 'token', 'box')",
    ),
    (
        "claim takes a call that runs",
        "elseif status == 'running' or status == 'scheduled' then",
        "elseif status == 'scheduled' then",
    ),
    (
        "claim takes a call that has ended",
        "if status == 'done' or status == 'dead' or status == 'pending' then\n    return {'done'",
        "if status == 'pending' then\n    return {'done'",
    ),
    (
        "claim takes a pending call",
        "if status == 'done' or status == 'dead' or status == 'pending' then\n    return {'done'",
        "if status == 'done' or status == 'dead' then\n    return {'done'",
    ),
    (
        "claim counts no attempt as not started",
        "'attempt', claim.attempt, 'notStarted', '1',",
        "'attempt', claim.attempt,",
    ),
    (
        "claim ignores the deadline",
        "elseif number_in(record[4]) < now then\n    verdict = 'expired'",
        "elseif false then",
    ),
    (
        "claim has no lease",
        "if #claims.leases == 0 then return end\n  redis.call('ZADD', due, unpack(claims.leases))",
        "if #claims.leases == 0 then return end",
    ),
    (
        "claim forgets terms",
        "'idempotent', terms.idempotent, 'maxAttempts', terms.most,",
        "'idempotent', '1', 'maxAttempts', terms.most,",
    ),
    ("sweep runs an unknown outcome again", "verdict = 'unknown'", "verdict = 'requeue'"),
    (
        "sweep takes what has not started for lost",
        "elseif not record[5] and record[6] ~= '1' then",
        "elseif record[6] ~= '1' then",
    ),
    (
        "sweep takes no token",
        "'status', is_open and 'running' or status, 'token', token)",
        "'status', is_open and 'running' or status)",
    ),
    (
        "sweep forgets a cancel",
        "if record[9] then\n    verdict = 'cancelled'",
        "if false then\n    verdict = 'cancelled'",
    ),
    (
        "sweep drops what it takes",
        "redis.call('ZADD', KEYS[1], now + pause, id)",
        "redis.call('ZREM', KEYS[1], id)",
    ),
    (
        "sweep takes what is not due",
        "redis.call('ZRANGE', KEYS[1], '-inf', now, 'BYSCORE', 'LIMIT'",
        "redis.call('ZRANGE', KEYS[1], '-inf', now + 20000, 'BYSCORE', 'LIMIT'",
    ),
    (
        "sweep forgets a completion",
        "verdict = completion and 'completed' or record[14]",
        "verdict = record[14]",
    ),
    (
        "release takes any token",
        "if record[1] ~= ARGV[2] or record[4] or record[6] ~= 'running' then return 0 end",
        "",
    ),
    ("release runs a started call again", "if not record[2] and record[3] ~= '1' then return 0 end", ""),
    ("release pushes no message", "redis.call(ARGV[4] == '1' and 'LPUSH' or 'RPUSH', KEYS[4], ARGV[3])", ""),
    (
        "release keeps the token",
        "redis.call('HDEL', keys[1], 'token', 'verdict', 'worker', 'notStarted', 'callback')",
        "redis.call('HDEL', keys[1], 'verdict', 'worker', 'notStarted', 'callback')",
    ),
    (
        "release sets no deadline",
        "  redis.call('ZADD', keys[2], redis.call('HGET', keys[1], 'deadline'), id)\n",
        "",
    ),
    (
        "release stays among those that run",
        "redis.pcall('ZREM', keys[3], id) -- only a list",
        "-- only a list",
    ),
    (
        "submit queues a call before its time",
        "local is_later = starts_at > now and new.message ~= ''",
        "local is_later = false",
    ),
    (
        "submit schedules for a time that is too early",
        "= is_later and math.min(starts_at, deadline) or deadline",
        "= is_later and math.min(starts_at - 5000, deadline) or deadline",
    ),
    (
        "submit never wakes a scheduled call",
        "= is_later and math.min(starts_at, deadline) or deadline",
        "= deadline + (is_later and 1e12 or 0)",
    ),
    (
        "wake queues what is not due",
        "local left, woken, ahead, passed =",
        "now = now + 30000; local left, woken, ahead, passed =",
    ),
    ("waking pushes no message", "  redis.call(attempt == 0 and 'LPUSH' or 'RPUSH', queue, record[2])", ""),
    (
        "waking leaves the call scheduled",
        "redis.call('HSET', key, 'status', 'queued', attempt == 0",
        "redis.call('HSET', key, 'status', 'scheduled', attempt == 0",
    ),
    (
        "waking gives an event no place",
        "if not put_in_mailbox(ns, box, id, now, ttl) then return",
        "if false then return",
    ),
    ("waking sets no deadline", "  redis.call('ZADD', due, deadline, id)\n", ""),
    (
        "waking leaves the call in the list",
        "  redis.pcall('ZREM', scheduled_index(ns, queue), id)\n",
        "",
    ),
    (
        "claim takes a scheduled call",
        "elseif status == 'running' or status == 'scheduled' then",
        "elseif status == 'running' then",
    ),
    (
        "cancel leaves a call scheduled",
        "if record[9] then -- it was scheduled",
        "if false then",
    ),
    (
        "retry is due too early",
        "redis.call('ZADD', KEYS[2], starts_at, ARGV[1])",
        "redis.call('ZADD', KEYS[2], starts_at - 4000, ARGV[1])",
    ),
    ("retry stays due when its lease ends", "redis.call('ZADD', KEYS[2], starts_at, ARGV[1])\n", ""),
    ("retry gains time beyond the deadline", "if starts_at > tonumber(record[2]) then return 0 end", ""),
    ("retry keeps the completion", "redis.call('HDEL', KEYS[1], 'completion')", ""),
    ("submit pushes no message", "redis.call('LPUSH', queue.queue, unpack(queue.messages))", ""),
    (
        "submit accepts other arguments",
        "~= new.digest then return 'conflict', status end",
        "~= new.digest then return 'known', status end",
    ),
    ("submit sets no deadline", "redis.call('ZADD', batch.due, unpack(batch.deadlines))", ""),
    ("submit accepts a call twice", "if status then return known_call(key, status, new) end", ""),
    (
        "submit gives no lifetime",
        "  redis.call('EXPIRE', key, new.ttl)\n",
        "",
    ),
    (
        "cancel reaches no claimed call",
        "redis.call('HSET', KEYS[1], 'cancelled', '1')",
        "if status ~= 'running' then redis.call('HSET', KEYS[1], 'cancelled', '1') end",
    ),
    (
        "cancel reopens what has ended",
        "if status == 'done' or status == 'dead' or (status == 'pending' and record[7]) then return",
        "if status == 'pending' and record[7] then return",
    ),
    (
        "mailbox gives any event",
        "if status == 'queued' and (ARGV[18] == '1' or first ~= id) then",
        "if status == 'queued' and ARGV[18] == '1' then",
    ),
    ("mailbox keeps what has ended", "redis.pcall('LREM', ns .. 'mailbox:' .. box, 1, id)", ""),
    ("mailbox releases no next event", "  release_event(ns, following, queue, wake_up)\n", ""),
    (
        "mailbox takes events at its front",
        "local pushed = redis.pcall('RPUSH', ns .. 'mailbox:' .. box, id)",
        "local pushed = redis.pcall('LPUSH', ns .. 'mailbox:' .. box, id)",
    ),
    (
        "mailbox goes on while a handler runs",
        "if not still_runs then\n  redis.call('HSET', KEYS[2], 'ender', request)",
        "if true then\n  redis.call('HSET', KEYS[2], 'ender', request)",
    ),
    (
        "sweep forgets an event whose handler ran",
        "local is_unfinished = status == 'done' and record[15]",
        "local is_unfinished = false",
    ),
    (
        "suspend takes any token",
        "if record[1] ~= ARGV[2] then return 0 end\nif record[3] then return -1 end",
        "if record[3] then return -1 end",
    ),
    (
        "suspend forgets its expiry",
        "redis.pcall('ZADD', KEYS[2], ARGV[4], ARGV[1])",
        "redis.call('ZREM', KEYS[2], ARGV[1])",
    ),
    ("resolve completes twice", "if record[7] and record[7] ~= completion then return {'closed'} end", ""),
    (
        "resolve reopens what has ended",
        "if status == 'done' or status == 'dead' or record[6] then return {'closed'} end\nif record[7] and",
        "if record[7] and",
    ),
    ("approve pushes no message", "redis.call('LPUSH', KEYS[6], ARGV[8])", ""),
    (
        "approve keeps the arguments that were asked for",
        "if ARGV[9] ~= '' then fields[9], fields[10] = 'call', ARGV[9] end\n",
        "",
    ),
    (
        "give back loses messages",
        "local pushed = redis.pcall('RPUSH', queue, string.sub(entry, cut + 1))",
        "local pushed = 1",
    ),
    (
        "reserve keeps no copy",
        "  redis.call('HSET', KEYS[1], unpack(copied))\n",
        "",
    ),
]
#: the damaged record of one call concerns others
_DAMAGED = [
    Mutation(
        "cancel watch stops at a damaged record",
        "if redis.pcall('HEXISTS', key, 'cancelled') == 1",
        "if redis.call('HEXISTS', key, 'cancelled') == 1",
    ),
    Mutation(
        "lead sends results for ever",
        "is_script_fault(answers)",
        "False",
        "workers.pool.lead:Lead._post_results",
    ),
    Mutation(
        "lead asks for marks for ever",
        "is_script_fault(answers)",
        "False",
        "workers.pool.lead:Lead._post_marks",
    ),
    Mutation(
        "waits end at a damaged record",
        "answers_of(pipe)",
        "pipe.execute()",
        "goondan_tasks.client.pending_call:CallService._look_for",
    ),
]
_ALL = [*(Mutation(*row) for row in _TABLE), *LIMIT_MUTATIONS, *_DAMAGED]
MUTATIONS = {mutation.name: mutation for mutation in _ALL}

#: mutations that change nothing alone, since another rule guards the same promise: each with that rule's
GUARDED_TWICE = {
    "lead sends results for ever": "finish stops at a damaged record",
    "lead asks for marks for ever": "start stops at a damaged record",
    "release runs a started call again": "sweep runs an unknown outcome again",
    "limits admit nobody when a call leaves": "limits look no earlier when a call leaves",
    "limits look no earlier when a call leaves": "limits admit nobody when a call leaves",
}
