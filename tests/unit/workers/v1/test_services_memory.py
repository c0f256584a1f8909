"""What older extensions remember, and how they log."""

from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from goondan_tasks.contract.calls import new_call
from tests.unit.workers.runs import job_of
from workers.extensions.events import running
from workers.extensions.state import MemoryState
from workers.v1.services import ConsoleLogger, Memory


@pytest.fixture
def instance() -> Iterator[None]:
    token = running.set(job_of(new_call("coder", "a.b", {}, {"instance_key": "k"})))
    yield
    running.reset(token)


@pytest.mark.usefixtures("instance")
def test_object_is_kept_apart_from_single_keys() -> None:
    memory = Memory.of(MemoryState(), "coder", "ext")
    assert memory.get_state() == {}
    memory.set_state({"count": 1})
    memory.state.set("object", 2)
    assert memory.get_state() == {"count": 1}
    assert memory.state.keys() == ["object"]


@pytest.mark.usefixtures("instance")
def test_agents_extensions_see_each_others_shared_state() -> None:
    store = MemoryState()
    one, other = Memory.of(store, "coder", "one"), Memory.of(store, "coder", "other")
    one.shared.set("turns", 3)
    one.set_state({"own": True})
    assert other.shared.get("turns") == 3
    assert other.get_state() == {}
    assert Memory.of(store, "planner", "one").shared.keys(instance_key="k") == []


@pytest.mark.parametrize("state", [None, [], "text", 5])
def test_state_is_object(state: Any) -> None:
    with pytest.raises(TypeError, match="an object, not"):
        Memory.of(MemoryState(), "coder", "ext").set_state(state)


def test_outside_of_turn_no_instance_is_meant() -> None:
    running.set(None)
    memory = Memory.of(MemoryState(), "coder", "ext")
    for ask in (memory.get_state, lambda: memory.set_state({})):
        with pytest.raises(RuntimeError, match=r"name the instance in api\.state\.get\(key, instance_key"):
            ask()


def test_values_beside_text_are_logged() -> None:
    console = ConsoleLogger(structlog.get_logger())
    error = ValueError("x")
    with capture_logs() as logs:
        console.debug("called 100%", {"a": 1}, "b")
        console.log("logged", turn="t")
        console.warn("warned")
        console.error("failed", error, 5)
        console.info({"no": "text"})

    assert logs == [
        {"event": "called 100%", "values": [{"a": 1}, "b"], "log_level": "debug"},
        {"event": "logged", "turn": "t", "log_level": "info"},
        {"event": "warned", "log_level": "warning"},
        {"event": "failed", "values": [5], "exc_info": error, "log_level": "error"},
        {"event": "{'no': 'text'}", "log_level": "info"},
    ]


def test_bound_console_logs_exception_being_handled() -> None:
    console = ConsoleLogger(structlog.get_logger()).bind(job=1).bind(part=2)
    with capture_logs() as logs:
        console.exception("broken", {"a": 1}, part=3)
    assert logs == [
        {"event": "broken", "values": [{"a": 1}], "exc_info": True, "job": 1, "part": 3, "log_level": "error"}
    ]
