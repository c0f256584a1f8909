"""The audit: what is recorded of acts, who did them, and how they are found again."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import cast

import fakeredis
import pytest

from broker_config.keys import Keys
from goondan_tasks.contract.errors import CallClosedError, ToolInputValidationError
from goondan_tasks.fleet.audit import (
    MOST_ENTRIES,
    TTL_SECONDS,
    AuditEntry,
    AuditFilter,
    AuditLog,
    Recorded,
    Target,
    acting_as,
    recording,
)
from goondan_tasks.fleet.http_tokens import HttpToken, TokenStore, digest_of

KEYS = Keys("goondan")


@recording(
    {
        "close": Recorded(lambda given: Target("gate", given["gate"]), says_whether=True),
        "knock": Recorded(lambda given: Target("gate", given["gate"]), is_routine=True),
        "close_all": Recorded(lambda _: Target("gates"), is_bulk=True),
    },
    "gate.",
)
class Gates:
    """Something with acts."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self.open = {"north", "south"}

    def close(self, gate: str, *, by: str = "", dry_run: bool = False) -> bool:
        if gate == "west":
            raise CallClosedError("There is no such gate.")
        was_open = gate in self.open
        if not dry_run:
            self.open.discard(gate)
        return was_open

    def knock(self, gate: str, by: str = "") -> None:
        pass

    def close_all(self, *gates: str) -> int:
        return sum(self.close(gate) for gate in gates or sorted(self.open))


@pytest.fixture
def redis() -> Iterator[fakeredis.FakeRedis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


@pytest.fixture
def log(redis: fakeredis.FakeRedis) -> AuditLog:
    return AuditLog(redis, KEYS)


def acts(log: AuditLog) -> list[tuple[str, str, str, str]]:
    return [(one.act, one.by, one.door, one.target) for one in log.find(100)]


def stored(redis: fakeredis.FakeRedis, count: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
    return cast("list[tuple[bytes, dict[bytes, bytes]]]", redis.xrange(KEYS.audit, count=count))


def test_act_is_recorded_with_person_door_object_time(log: AuditLog) -> None:
    with acting_as("ann", "console"):
        Gates(log).close("north")
    [entry] = log.find(10)

    assert entry.to_wire() == {
        "v": 1,
        "act": "gate.close",
        "by": "ann",
        "door": "console",
        "kind": "gate",
        "target": "north",
        "outcome": "ok",
        "id": entry.id,
        "at": entry.at,
    }
    assert AuditEntry.from_wire(entry.to_wire()) == entry


def test_dry_run_or_failed_act_is_not_recorded(log: AuditLog) -> None:
    gates = Gates(log)
    gates.close("north", dry_run=True)
    gates.close("east")
    with pytest.raises(CallClosedError):
        gates.close("west")
    with pytest.raises(TypeError):
        gates.close()  # type: ignore[call-arg]

    assert log.find(10) == []


def test_act_on_many_is_one_counted_entry(log: AuditLog) -> None:
    gates = Gates(log)
    assert (gates.close_all(), gates.close_all()) == (2, 0)

    assert [(one.act, one.count, one.outcome) for one in log.find(10)] == [("gate.close_all", 2, "ok")]


def test_act_on_many_that_failed_midway_names_error(log: AuditLog) -> None:
    with pytest.raises(CallClosedError):
        Gates(log).close_all("north", "west")

    [entry] = log.find(10)
    assert (entry.count, entry.outcome) == (None, "E_CALL_CLOSED")


def test_interrupted_act_on_many_is_recorded_as_interrupted(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates, close = Gates(log), Gates.close

    def closed_until_south(self: Gates, gate: str) -> bool:
        if gate == "south":
            raise KeyboardInterrupt
        return close(self, gate)

    monkeypatch.setattr(Gates, "close", closed_until_south)
    with pytest.raises(KeyboardInterrupt):
        gates.close_all("north", "south")
    [entry] = log.find(10)
    assert (entry.act, entry.count, entry.outcome) == ("gate.close_all", None, "KeyboardInterrupt")


def test_routine_acts_are_recorded_only_with_named_person(log: AuditLog) -> None:
    gates = Gates(log)
    gates.knock("north")
    gates.knock("south", by="bob")
    with acting_as("ann", "slack"):
        gates.knock("west")

    assert acts(log) == [("gate.knock", "ann", "slack", "west"), ("gate.knock", "bob", "library", "south")]


def test_other_name_is_recorded_beside_actors(log: AuditLog) -> None:
    with acting_as("ann@host", "cli", "ann"):
        Gates(log).close("north", by="ann")
        Gates(log).close("south", by="bob")

    assert [(one.by, one.in_name_of) for one in log.find(10)] == [("ann@host", "bob"), ("ann@host", None)]


def test_actor_is_known_in_thread_with_context(log: AuditLog) -> None:
    with ThreadPoolExecutor() as threads, acting_as("ann", "api"):
        threads.submit(copy_context().run, Gates(log).close, "north").result()

    assert acts(log) == [("gate.close", "ann", "api", "north")]


def test_entries_are_found_by_person_object_act_door_place(log: AuditLog) -> None:
    for number in range(5):
        with acting_as("ann" if number % 2 else "bob", "cli"):
            log.add("pause", Target("agent", f"agent-{number}", f"agent-{number}"))
    log.add("pause", Target("tool", "draw", "agent-1"), by="cid")

    assert [one.target for one in log.find(2, None, AuditFilter(by="ann"))] == ["agent-3", "agent-1"]
    assert [one.target for one in log.find(9, None, AuditFilter(target="agent-1"))] == ["draw", "agent-1"]
    assert [one.by for one in log.find(9, None, AuditFilter(door="library", act="pause"))] == ["cid"]
    assert log.find(9, None, AuditFilter(act="resume")) == []
    assert len(log.find(9, None, AuditFilter(newer_than=60))) == 6
    first = log.find(4)
    rest = log.find(9, first[-1].id)
    assert [one.target for one in (*first, *rest)] == ["draw", *(f"agent-{n}" for n in (4, 3, 2, 1, 0))]
    for cursor in ("", "x", "1-1 "):
        with pytest.raises(ToolInputValidationError):
            log.find(9, cursor)


def test_audit_keeps_latest_entries(redis: fakeredis.FakeRedis, log: AuditLog) -> None:
    with redis.pipeline(transaction=False) as pipe:
        for number in range(MOST_ENTRIES):
            pipe.xadd(KEYS.audit, {"entry": "not JSON"}, id=f"{number + 1}-0")
        pipe.execute()
    redis.xadd(KEYS.audit, {"of": "another program"})
    log.add("pause", Target("agent", "coder"))

    assert redis.xlen(KEYS.audit) == MOST_ENTRIES
    assert [entry_id for entry_id, _ in stored(redis, 1)] == [b"3-0"]
    assert redis.ttl(KEYS.audit) > TTL_SECONDS - 60
    assert [one.act for one in log.find(MOST_ENTRIES)] == ["pause"]  # damaged ones are left out


def test_act_stands_although_its_entry_cannot_be_written(
    redis: fakeredis.FakeRedis, log: AuditLog, caplog: pytest.LogCaptureFixture
) -> None:
    redis.set(KEYS.audit, "of another program")
    gates = Gates(log)
    with caplog.at_level(logging.WARNING):
        assert gates.close("north")

    assert gates.open == {"south"}
    assert "gate.close of gate north was done, but is not in the audit" in caplog.text
    assert log.find(10) == []


def test_tokens_are_recorded_by_name_alone(redis: fakeredis.FakeRedis, log: AuditLog) -> None:
    store, token = TokenStore(redis, KEYS), HttpToken(name="ci", digest=digest_of(b"gdn_x"), scopes=("read",))
    assert (store.add(token), store.add(token)) == (True, False)
    assert (store.revoke("ci"), store.revoke("ci")) == (True, False)

    assert [(one.act, one.target) for one in log.find(10)] == [("token.revoke", "ci"), ("token.add", "ci")]
    assert token.digest.encode() not in b"".join(fields[b"entry"] for _, fields in stored(redis, 10))
