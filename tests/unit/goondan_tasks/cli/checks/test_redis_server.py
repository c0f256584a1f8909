"""Is the Redis server fit for a broker?"""

from typing import Any

import pytest

from goondan_tasks.cli.checks.redis_server import (
    clock_check,
    latency_check,
    neighbour_check,
    priority_checks,
    server_checks,
)

GOOD = {
    "redis_version": "7.0.15",
    "role": "master",
    "cluster_enabled": 0,
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
    "aof_last_write_status": "ok",
    "used_memory": 2_000_000,
    "maxmemory": 0,
}


def levels(**changes: Any) -> dict[str, str]:
    """Return what is not ok about a server whose INFO differs from a good one's."""
    return {check.name: check.level for check in server_checks({**GOOD, **changes}) if check.level != "ok"}


def test_a_good_server_is_ok() -> None:
    assert levels() == {}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"redis_version": "6.2.0"}, {}),
        ({"redis_version": "6.0.16"}, {"version": "problem"}),
        ({"redis_version": "5.0"}, {"version": "problem"}),
        ({"redis_version": "10.0.0"}, {}),
        ({"role": "slave"}, {"role": "problem"}),
        ({"cluster_enabled": 1}, {"role": "problem"}),
        ({"maxmemory_policy": "allkeys-lru"}, {"eviction": "problem"}),
        ({"aof_enabled": 0}, {"persistence": "warning"}),
        ({"aof_last_write_status": "err"}, {"persistence": "problem"}),
        ({"maxmemory": 2_000_001}, {"memory": "warning"}),
        ({"maxmemory": 200_000_000}, {}),
    ],
)
def test_what_is_wrong_with_a_server_is_found(changes: dict[str, Any], found: dict[str, str]) -> None:
    assert levels(**changes) == found


def test_every_fault_says_how_to_mend_it() -> None:
    bad = {
        **GOOD,
        "redis_version": "5.0",
        "role": "slave",
        "maxmemory_policy": "volatile-ttl",
        "aof_enabled": 0,
        "maxmemory": 1,
    }

    checks = server_checks(bad)

    assert [check.level for check in checks if check.remedy] == ["problem"] * 3 + ["warning"] * 2


def test_valkey_is_known_by_its_own_name() -> None:
    info = {**GOOD, "redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "8.0.1"}

    assert server_checks(info)[0].message == "Valkey 8.0.1"


@pytest.mark.parametrize(("milliseconds", "level"), [(0.2, "ok"), (19.0, "ok"), (35.0, "warning")])
def test_a_slow_server_is_a_warning(milliseconds: float, level: str) -> None:
    assert latency_check(milliseconds).level == level


@pytest.mark.parametrize(
    ("seconds", "level", "message"),
    [
        (0.4, "ok", "this machine and Redis agree on the time"),
        (90.0, "warning", "this machine is 90 s ahead of Redis"),
        (-90.0, "warning", "this machine is 90 s behind Redis"),
    ],
)
def test_clocks_that_differ_are_a_warning(seconds: float, level: str, message: str) -> None:
    check = clock_check(seconds)

    assert (check.level, check.message) == (level, message)


OURS = [
    "shop:call:1",
    "agent.coder",
    "celery-task-meta-1",
    "_kombu.binding.celery",
    "unacked_index",
    "0f3d.reply.celery.pidbox",
    "celeryev.9b1c",
]


def test_our_own_keys_and_those_of_celery_are_no_neighbours() -> None:
    assert neighbour_check(OURS, "shop", is_sample=False).message == "only ours among 7 keys"


def test_calls_with_a_priority_are_found_where_no_worker_looks() -> None:
    assert priority_checks(OURS) == []

    (check,) = priority_checks([*OURS, "agent.coder\x06\x163", "agent.coder.events\x06\x169"])

    assert check.level == "problem"
    assert check.message.endswith(r"'agent.coder\x06\x163', 'agent.coder.events\x06\x169'")


def test_keys_of_another_program_are_a_warning() -> None:
    check = neighbour_check([*OURS, "celery", "other:call:1", "session:1", "zz"], "shop", is_sample=True)

    assert check.level == "warning"
    assert check.message.startswith(
        "4 of the 11 keys looked at belong to another program, such as 'celery', "
    )
