"""Leases, cursors and counts of Connections."""

from collections.abc import Iterator

import pytest
from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.connectors.store import ConnectionStore, Lease
from goondan_tasks.contract.errors import ConnectorError, RecordDamagedError
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from goondan_tasks.fleet.connections import all_connections
from tests.waiting import wait_until


@pytest.fixture
def store(redis: Redis) -> Iterator[ConnectionStore]:
    yield ConnectionStore(redis, Keys(), "office", lease_seconds=30)


def lease(store: ConnectionStore, token: str) -> Lease:
    return Lease(store.key("notes"), token, f"host:{token}", "file")


def test_one_process_holds_connection(store: ConnectionStore) -> None:
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


def test_lease_from_damaged_future_is_taken(store: ConnectionStore, redis: Redis) -> None:
    redis.hset(store.key("notes"), mapping={"token": "a", "until": 10**15})
    assert store.hold(lease(store, "b")) == 0


def test_only_holder_moves_cursor(store: ConnectionStore, redis: Redis) -> None:
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


def test_status_says_how_connection_fares(store: ConnectionStore) -> None:
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


def test_events_wait_in_agents_queue_or_mailbox(store: ConnectionStore, redis: Redis) -> None:
    assert store.waiting("clerk", "room/1") == 0
    redis.rpush("agent.clerk.events", *"abc")
    redis.rpush("goondan:mailbox:clerk@room%2F1", *"abcde")
    assert [store.waiting("clerk", key) for key in ("room/1", "room/2")] == [5, 3]
    assert store.waiting("expert", "room/1") == 0


def test_damaged_mailbox_holds_nothing_back(store: ConnectionStore, redis: Redis) -> None:
    redis.set("goondan:mailbox:clerk@room", "text")
    redis.rpush("agent.clerk.events", "a")
    assert store.waiting("clerk", "room") == 1


def test_processes_that_share_lease_count_together(store: ConnectionStore) -> None:
    shared = [Lease(store.key("notes"), "http", owner, "file") for owner in ("here:1", "there:2")]
    for one in shared:
        assert store.hold(one) == 0
        store.count(one, "events")
    store.note_error(shared[0], "it has ended")
    [status] = store.statuses({"notes": "file"})
    assert (status.state, status.process, status.events) == ("running", "there:2", 2)
    assert status.last_error == "it has ended"


def test_reason_of_failure_is_kept_without_secrets(store: ConnectionStore) -> None:
    KNOWN_SECRETS.add("123456:the-token-of-a-bot")
    holder, url = lease(store, "a"), "https://x.example/bot123456:the-token-of-a-bot/getUpdates"
    store.hold(holder)
    store.count(holder, "refused", f"cannot ask {url}")
    [refused] = store.statuses({"notes": "file"})
    store.let_go(holder, f"HTTPError: 404 of {url}")
    [failed] = store.statuses({"notes": "file"})

    assert refused.last_error == "cannot ask https://x.example/bot***/getUpdates"
    assert failed.last_error == "HTTPError: 404 of https://x.example/bot***/getUpdates"


def test_connections_of_all_workspaces_are_listed(store: ConnectionStore, redis: Redis) -> None:
    keys = Keys()
    other = ConnectionStore(redis, keys, "home: a b/c", lease_seconds=30)
    store.hold(lease(store, "a"))
    other.hold(Lease(other.key("my notes"), "b", "there:2", "chat"))
    redis.zadd(keys.connections, {"gone:notes": 1, "\xff": 2})

    first, second = all_connections(redis, keys)
    assert (first.full_name, first.connector, first.process) == ("home: a b/c/my notes", "chat", "there:2")
    assert (second.full_name, second.connector, second.state) == ("office/notes", "file", "running")
    redis.delete(keys.connections)
    redis.set(keys.connections, "x")
    assert all_connections(redis, keys) == []
    assert store.hold(lease(store, "a")) == 0
    redis.delete(store.key("notes"))
    assert store.hold(lease(store, "c")) == 0


def test_cursor_moves_on_after_redis_returns_empty(store: ConnectionStore, redis: Redis) -> None:
    """A connector that has its place in memory goes on from there before its lease is renewed."""
    holder = lease(store, "a")
    store.hold(holder)
    redis.delete(store.key("notes"))
    store.count(holder, "events")
    store.move_cursor(holder, 6)
    store.move_cursor(holder, 7)
    assert store.cursor("notes") == 7
    assert store.hold(lease(store, "b")) == 0
    with pytest.raises(ConnectorError, match="Another process has the lease"):
        store.move_cursor(holder, 8)


def test_cursor_moves_after_lease_that_nobody_has_taken(store: ConnectionStore, redis: Redis) -> None:
    holder = lease(store, "http")
    store.hold(holder)
    redis.hset(store.key("notes"), "until", 1)
    store.move_cursor(holder, 7)
    assert store.cursor("notes") == 7
