"""A worker without the active revision leaves its agents' calls to those that have it."""

from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.process_identity import this_process
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.errors import (
    BundleRevisionUnavailableError,
    ConfigError,
    ExtensionInitError,
    ExtensionLoadError,
    GoondanError,
    HandoffDepthError,
    ToolInputValidationError,
)
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.revisions.active import RevisionState
from tests.unit.workers.pool.fake_consumer import Consumer
from workers.pool.consumed_queues import PausedQueues
from workers.revisions.sync import BEHIND_SECONDS, Standby

UNAVAILABLE = BundleRevisionUnavailableError("r2 is not here.")


class Workers:
    """This worker runs r1 while r2 is active; others as they are said to."""

    def __init__(self, *others: Any) -> None:
        revisions: Any = SimpleNamespace(
            active=SimpleNamespace(ref="r1"), served=("lizard", "newt"), fixed=self.fixed
        )
        self.standby = Standby(revisions, lambda: RevisionState(active="r2"), lambda: others)

    @staticmethod
    def fixed(call: ToolCall) -> ToolCall:
        """Return a call with the revision of its Step, if it has one."""
        return call if call.step_id is None else call.model_copy(update={"bundle_ref": call.step_id})

    def leaves(self, agent: str, error: GoondanError = UNAVAILABLE, **fields: str | None) -> bool:
        """Say whether a call that cannot be run here is left to others."""
        call = new_call(agent, "skin__colour", {}, {}).model_copy(update=fields)
        return self.standby.leaves(call, error)

    def agents(self) -> frozenset[str]:
        self.standby.look()
        return self.standby.agents


def other(ref: str, *agents: str, id: str = "other") -> Any:
    """Return the record of a worker with our process id and host: as in a container with the same name."""
    us = this_process()
    return SimpleNamespace(bundle_ref=ref, agents=agents, id=id, pid=us.pid, host=us.host)


def test_worker_lacking_active_revision_leaves_agents_others_serve() -> None:
    here = Workers(other("r2", "lizard", "frog"), other("r1", "newt"))
    assert here.agents() == frozenset()
    here.standby.lack("r2")
    assert here.agents() == {"lizard"}
    here.standby.have()
    assert here.agents() == frozenset()


def test_last_worker_takes_all_calls() -> None:
    here = Workers(other("r2", "lizard", id=this_process().id))
    here.standby.lack("r2")
    assert here.agents() == frozenset()


def test_worker_that_loads_for_long_stands_by(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("workers.revisions.sync.monotonic", lambda: clock[0])
    here = Workers(other("r2", "lizard"))
    here.standby.lack("r2", is_loading=True)
    assert here.agents() == frozenset()
    clock[0] += BEHIND_SECONDS
    here.standby.lack("r2", is_loading=True)
    assert here.agents() == {"lizard"}


def test_worker_leaving_call_to_others_stands_by() -> None:
    here = Workers(other("r2", "lizard"))
    assert here.leaves("lizard", bundle_ref="r2")
    assert here.agents() == {"lizard"}


def test_worker_that_stops_takes_nothing_up_again() -> None:
    here = Workers(other("r2", "lizard"))
    here.standby.lack("r2")
    assert here.agents() == {"lizard"}
    here.standby.end()
    here.standby.have()
    assert here.agents() == {"lizard"}


@pytest.mark.parametrize(
    ("ref", "agent", "is_left"),
    [
        ("r2", "lizard", True),
        ("r2", "newt", False),  # nobody could run it
        ("r0", "lizard", False),  # not what is active
        ("r1", "lizard", False),  # what runs here
        (None, "lizard", False),
    ],
)
def test_call_is_left_only_to_capable_workers(ref: str | None, agent: str, is_left: bool) -> None:
    here = Workers(other("r2", "lizard"), other("r0", "lizard"))
    assert here.leaves(agent, bundle_ref=ref) is is_left
    assert bool(here.agents()) is is_left


def test_step_call_goes_to_workers_with_steps_revision() -> None:
    assert Workers(other("r2", "lizard")).leaves("lizard", step_id="r2")


@pytest.mark.parametrize(
    ("error", "is_left"),
    [
        (UNAVAILABLE, True),
        (ExtensionLoadError("no database here"), True),
        (ExtensionInitError("no database here"), True),
        (ConfigError("not valid here"), True),
        (ToolInputValidationError("no such argument"), False),
        (HandoffDepthError("too deep"), False),
    ],
)
def test_only_load_failures_leave_call_to_others(error: GoondanError, is_left: bool) -> None:
    assert Workers(other("r2", "lizard")).leaves("lizard", error, bundle_ref="r2") is is_left


def test_no_call_is_left_to_others_without_redis() -> None:
    def away() -> RevisionState:
        raise RedisConnectionError("away")

    here = Workers(other("r2", "lizard"))
    here.standby._state = away
    assert not here.leaves("lizard", bundle_ref="r2")


def test_only_left_queues_are_taken_up_again() -> None:
    consumer = Consumer("agent.lizard", "agent.lizard.events", "agent.newt")
    left = PausedQueues(consumer)
    left.leave({"lizard", "frog"})
    assert (set(consumer.queues), left.agents) == ({"agent.newt"}, {"lizard"})
    left.leave(())
    assert set(consumer.queues) == {"agent.lizard", "agent.lizard.events", "agent.newt"}
    assert left.names == frozenset()
