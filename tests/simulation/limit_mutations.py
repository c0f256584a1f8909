"""Faults of limits that the walks must find."""

from tests.simulation.scripts import Mutation

_FREED = (
    "elseif status ~= 'queued' and status ~= 'running' then\n        redis.call('ZREM', holders .. name, id)"
)

LIMIT_MUTATIONS = [
    Mutation(
        "limits admit one call too many",
        "if redis.call('ZCARD', key) < limit.most then return end",
        "if redis.call('ZCARD', key) <= limit.most then return end",
    ),
    Mutation(
        "limits free the permits of calls that run",
        _FREED,
        _FREED.replace(" and status ~= 'running'", ""),
    ),
    Mutation(
        "limits keep the permits of the dead",
        _FREED,
        "elseif false then\n        redis.call('ZREM', holders .. name, id)",
    ),
    Mutation(
        "limits let a later call overtake",
        "if not is_holder and has_earlier(limit.name, id, at) then return 'wait' end",
        "",
    ),
    Mutation(
        "limits stop at a waiting call that has ended",
        "take_out(id)\n        redis.call('ZREM', wait_queues .. name, id)",
        "return",
    ),
    Mutation(
        "limits admit nobody when a call leaves",
        "for _, name in ipairs(left) do pcall(admit_waiting, name) end",
        "",
    ),
    Mutation(
        "limits look no earlier when a call leaves",
        "redis.pcall('ZADD', look_times, 'XX', 'LT', now, limit.name)",
        "",
    ),
    Mutation(
        "limits keep the permits of calls that have ended",
        "    ends.limits.leave({id = ended.id,",
        "    local _ = ({id = ended.id,",
    ),
    Mutation(
        "limits leave calls that have ended in wait queues",
        "if record[8] then pcall(ends.limits.take_out, ended.id) end",
        "",
    ),
    Mutation(
        "reserve keeps no limits in the record", "if permits then fields = {'permits', permits} end", ""
    ),
    Mutation(
        "admit keeps no limits in the record",
        "if word == 'go' then redis.call('HSET', KEYS[1], 'permits', ARGV[6]) end",
        "",
    ),
    Mutation(
        "reserve claims calls that wait",
        "if word == 'wait' then return 'waiting' end",
        "if word == 'wait' then return 'run' end",
    ),
    Mutation(
        "reserve pushes the messages of admitted calls too early",
        "local close = end_claims()",
        "local late = end_claims()\nlocal early = late and late()\nlocal function close() return early end",
    ),
    Mutation(
        "reserve runs what a rate admits too late",
        "return word == 'late' and 'limited' or 'run'",
        "return 'run'",
    ),
    Mutation(
        "a retry keeps its permits",
        "limits.leave({id = ARGV[1], token = ARGV[2], limits = record[7], has_begun = true})",
        "",
    ),
    Mutation(
        "a pending call keeps its permits",
        "limits.leave({id = ARGV[1], token = ARGV[2], limits = record[6]",
        "local _ = ({id = ARGV[1], token = ARGV[2], limits = record[6]",
    ),
    Mutation(
        "limits give the wait queue no lifetime",
        "for _, key in ipairs({wait_queues .. name, waiters .. id, waiting .. agent, look_times}) do",
        "for _, key in ipairs({waiters .. id, waiting .. agent, look_times}) do",
    ),
    Mutation(
        "limits keep a waiter among the waiting",
        "redis.pcall('ZREM', waiting .. (waiter[2] or ''), id)",
        "",
    ),
    Mutation("limits push no message", "redis.call('RPUSH', queue, unpack(front, behind + 1))", ""),
    Mutation("limits plan no look", "redis.call('ZADD', look_times, 'LT', now + pause, name)", ""),
    Mutation(
        "rate reserves nothing",
        "redis.call('ZADD', holders .. limit.name, since, id)",
        "if limit.kind ~= 'rate' then redis.call('ZADD', holders .. limit.name, since, id) end",
    ),
    Mutation(
        "rate counts a call, not its runs",
        "redis.call('ZADD', key, 'NX', now, id .. ' ' .. token)",
        "redis.call('ZADD', key, 'NX', now, id)",
    ),
    Mutation(
        "rate has a shorter period",
        "redis.call('ZREMRANGEBYSCORE', key, '-inf', now - limit.period)",
        "redis.call('ZREMRANGEBYSCORE', key, '-inf', now - limit.period * 0.7)",
    ),
    Mutation(
        "rate keeps the reservations of the dead",
        "local least = kind == 'rate' and RESERVED or '-inf'",
        "local least = kind == 'rate' and 2 * RESERVED or '-inf'",
    ),
    Mutation(
        "a mark takes no key",
        "elseif limit ~= '' and not hold_key(KEYS[at], id, limit) then",
        "elseif false then",
    ),
    Mutation(
        "a claimed call waits for a key and keeps its claim",
        "if word == 'wait' and call.on_wait then call.on_wait() end",
        "",
    ),
    Mutation(
        "a claimed call gives its claim up too late",
        "      if word == 'wait' and call.on_wait then call.on_wait() end\n      admit_waiting(limit.name)",
        "      admit_waiting(limit.name)\n      if word == 'wait' and call.on_wait then call.on_wait() end",
    ),
    Mutation(
        "keys of claimed calls are not asked for",
        "if claim.verdict is not Verdict.RUN or not limits.has_key(call):",
        "if True:",
        where="workers.delivery.limiter:CallLimiter.admit_claimed",
    ),
    Mutation(
        "key runs beside its call",
        "local is_under_way = status == 'queued' or status == 'running' or status == 'pending'",
        "local is_under_way = status == 'queued' or status == 'pending'",
    ),
    Mutation(
        "key runs although its call is pending",
        "local is_under_way = status == 'queued' or status == 'running' or status == 'pending'",
        "local is_under_way = status == 'queued' or status == 'running'",
    ),
    Mutation(
        "key shares every error",
        "return outcome == 'ok' or with_unknown and is_unknown",
        "return true",
    ),
    Mutation(
        "key forgets unknown outcomes",
        "return outcome == 'ok' or with_unknown and is_unknown",
        "return outcome == 'ok'",
    ),
    Mutation(
        "key compares no arguments",
        "if state[2] ~= limit.digest then return 'conflict', owner end",
        "",
    ),
    Mutation(
        "key runs if its call's record is damaged",
        "if type(status) == 'table' then return 'share', owner end",
        "if type(status) == 'table' then return end",
    ),
    Mutation(
        "key shares no output",
        'for name in ("status", "output", "handle", "error")',
        'for name in ("status", "handle", "error")',
        where="goondan_tasks.ledger.reaper:shared",
    ),
    Mutation(
        "key forgets the file of a large output",
        "output_file=result.meta.output_file",
        "output_file=None",
        where="goondan_tasks.ledger.reaper:shared",
    ),
    Mutation(
        "limits are not asked",
        "limits is None or (limits.is_empty and not call.idempotency_key)",
        "True",
        where="workers.delivery.limiter:CallLimiter.claim",
    ),
    Mutation(
        "rate forgets the starts of short runs",
        "if limit.kind == 'rate' and run.has_begun then",
        "if false then",
    ),
    Mutation(
        "wake checks no wait queues",
        "  limits.look()\n  limits.close()\n",
        "",
    ),
]
