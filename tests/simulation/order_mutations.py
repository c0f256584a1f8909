"""Writes of scripts in an order in which a script that stops half-way loses something."""

_RECORDS = "for key, new in pairs(batch.new) do write_record(key, new) end"
_DEADLINES = "redis.call('ZADD', batch.due, unpack(batch.deadlines))"
_CLAIMS = "for key, claim in pairs(claims.records) do write_claim(key, claim, claims.now) end"
_LEASES = "redis.call('ZADD', due, unpack(claims.leases))"
_TRIM = "for queue, took in pairs(lengths) do redis.call('LTRIM', queue, 0, -took - 1) end"
_RELEASE = "redis.call(ARGV[4] == '1' and 'LPUSH' or 'RPUSH', KEYS[4], ARGV[3])"
_GIVEN_BACK = "local pushed = redis.pcall('RPUSH', queue, string.sub(entry, cut + 1))"
_ADMITTED = "leaving[name], left.count, left.calls[id] ="
_COPIED = "if #copied > 0 then\n"
_RUNNING = "redis.call('HSET', KEYS[1], 'status', 'running')\n"
_TAKEN = f"redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])\n{_RUNNING}"
_HELD = "redis.call('HSET', KEYS[1], unpack(fields))\n"
_ANSWERED = "if ended.before and not record.err then "
_STORED = "keep_result(key, ttl, ends.now, ended, record[5], record[6], record[7], record[9], false)\n"
_LEFT = "for agent, ids in pairs(ends.running) do"
#: name, text, its replacement
ORDERS = (
    ("submit writes records before deadlines", _DEADLINES, f"{_RECORDS}\n  {_DEADLINES}"),
    ("claims are written before their leases", _LEASES, f"{_CLAIMS}\n  {_LEASES}"),
    (
        "reserve takes messages out before it claims",
        "\nlocal close = end_claims()\n",
        f"\n{_TRIM}\nlengths = {{}}\nlocal close = end_claims()\n",
    ),
    (
        "release queues a call before its message",
        _RELEASE,
        f"redis.call('HSET', KEYS[1], 'status', 'queued', 'released', ARGV[2])\n  {_RELEASE}",
    ),
    (
        "give back drops the copy before it pushes",
        _GIVEN_BACK,
        f"redis.call('HDEL', KEYS[1], ARGV[i])\n    {_GIVEN_BACK}",
    ),
    (
        "limits take a call out before its message",
        _ADMITTED,
        f"redis.call('ZREM', wait_queues .. name, id)\n  redis.call('DEL', waiters .. id)\n  {_ADMITTED}",
    ),
    (
        "a result ends its claim before it leaves the lists",
        _LEFT,
        f"if #ends.ids > 0 then redis.pcall('ZREM', due, unpack(ends.ids)) end\n  {_LEFT}",
    ),
    (
        "reserve takes messages out before it copies them",
        _COPIED,
        f"{_TRIM}\nlengths = {{}}\n{_COPIED}",
    ),
    (
        "cancel takes a call before its lease",
        _TAKEN,
        f"{_RUNNING}{_TAKEN}",
    ),
    (
        "a result is stored before its answer is accepted",
        _ANSWERED,
        f"{_ANSWERED}{_STORED}",
    ),
    (
        "a call is pending before it waits for its approval",
        _HELD,
        f"redis.call('HSET', KEYS[1], unpack(fields, 1, 10))\n{_HELD}",
    ),
)
