"""Leases, cursors and counts of Connections."""

from collections.abc import Iterator

import pytest
from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.connectors.store import ConnectionStore, Lease
from goondan_tasks.contract.errors import ConnectorError, RecordDamagedError
from tests.waiting import wait_until


@pytest.fixture
def store(redis: Redis) -> Iterator[ConnectionStore]:
    yield ConnectionStore(redis, Keys(), "office", lease_seconds=30)


def lease(store: ConnectionStore, token: str) -> Lease:
    return Lease(store.key("notes"), token, f"host:{token}")


def test_one_process_holds_a_connection(store: ConnectionStore) -> None:
    assert store.hold(lease(store, "a")) == 0
    assert 29 < store.hold(lease(store, "b")) <= 30
    assert store.hold(lease(store, "a")) == 0
    store.let_go(lease(store, "b"))
    assert store.hold(lease(store, "b")) > 0
    store.let_go(lease(store, "a"))
    assert store.hold(lease(store, "b")) == 0


def test_lease_ends_by_itself(redis: Redis) -> None:
    store = ConnectionStore(redis, Keys(), "office", lease_seconds=0.05)
    assert store.hold(lease(store, "a")) == 0
    wait_until(lambda: store.hold(lease(store, "b")) == 0, 5)
    with pytest.raises(ConnectorError, match="Another process has the lease"):
        store.move_cursor(lease(store, "a"), 1)


def test_lease_from_a_damaged_future_is_taken(store: ConnectionStore, redis: Redis) -> None:
    redis.hset(store.key("notes"), mapping={"token": "a", "until": 10**15})
    assert store.hold(lease(store, "b")) == 0


def test_only_the_holder_moves_the_cursor(store: ConnectionStore, redis: Redis) -> None:
    holder, other = lease(store, "a"), lease(store, "b")
    store.hold(holder)
    assert store.cursor("notes") is None
    store.move_cursor(holder, {"offset": 7})
    with pytest.raises(ConnectorError, match="Another process has the lease"):
        store.move_cursor(other, {"offset": 8})
    store.let_go(holder)
    with pytest.raises(ConnectorError):
        store.move_cursor(holder, {"offset": 9})
    assert store.cursor("notes") == {"offset": 7}
    assert 0 < int(redis.ttl(store.key("notes"))) <= 30 * 86_400


def test_cursor_that_is_too_large_is_refused(store: ConnectionStore) -> None:
    store.hold(lease(store, "a"))
    with pytest.raises(ConnectorError, match="more than 65,536"):
        store.move_cursor(lease(store, "a"), "x" * 70_000)


def test_status_says_how_a_connection_fares(store: ConnectionStore) -> None:
    holder = lease(store, "a")
    store.hold(holder)
    store.count(holder, "events")
    store.count(holder, "events")
    store.count(holder, "refused", "no such agent")
    [running, unknown] = store.statuses({"notes": "file", "other": "file"})
    assert (running.state, running.process, running.events, running.refused) == ("running", "host:a", 2, 1)
    assert running.since is not None
    assert running.last_event_at is not None
    assert running.last_error == "no such agent"
    assert (unknown.state, unknown.process, unknown.events) == ("stopped", None, 0)
    assert unknown.last_event_at is None
    store.let_go(holder, "it crashed")
    [stopped, _] = store.statuses({"notes": "file", "other": "file"})
    assert (stopped.state, stopped.process, stopped.events, stopped.last_error) == (
        "stopped", None, 2, "it crashed",
    )  # fmt: skip


def test_overwritten_key_is_named(store: ConnectionStore, redis: Redis) -> None:
    redis.set(store.key("notes"), "x")
    with pytest.raises(RecordDamagedError, match="goondan:connection:office:notes"):
        store.hold(lease(store, "a"))
    with pytest.raises(RecordDamagedError):
        store.statuses({"notes": "file"})


def test_fields_of_another_program_are_no_numbers(store: ConnectionStore, redis: Redis) -> None:
    redis.hset(store.key("notes"), mapping={"events": "many", "until": "soon", "lastEventAt": "9" * 30})
    [status] = store.statuses({"notes": "file"})
    assert (status.state, status.events, status.last_event_at) == ("stopped", 0, None)


def test_reason_that_is_no_unicode_is_stored(store: ConnectionStore) -> None:
    holder = lease(store, "a")
    store.hold(holder)
    store.count(holder, "refused", "odd \ud800 text")
    assert store.statuses({"notes": "file"})[0].last_error == "odd \\ud800 text"
    store.let_go(holder, "\udfff")
    assert store.statuses({"notes": "file"})[0].last_error == "\\udfff"
