"""Steps: opened by a worker, enforced by every worker, for producers and for agents' entries."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.client import AsyncClient, Client, StepCallResult, results
from goondan_tasks.client.results import Expected, ResultListener
from goondan_tasks.contract.errors import (
    CallNotFoundError,
    HandoffError,
    MiddlewareError,
    StepLimitError,
    ToolCallConflictError,
    ToolError,
    ToolInputValidationError,
    WaitTimeout,
)
from goondan_tasks.contract.names import call_identity
from goondan_tasks.history import opening_id
from goondan_tasks.testing import LocalStack
from tests.integration.crew import Crew
from tests.integration.results import code_of, error_of
from tests.waiting import wait_until

STEPS_BUNDLE = Path(__file__).parent.parent / "bundles" / "steps"

PATIENCE = 60

ALL = ("stove__cook", "stove__burn", "stove__context")


@pytest.fixture(scope="module")
def steps_stack() -> Iterator[LocalStack]:
    with LocalStack(STEPS_BUNDLE) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(steps_stack: LocalStack) -> Client:
    return steps_stack.client


@pytest.fixture(scope="module")
def relief() -> Iterator[Crew]:
    """A stack whose workers take turns: each is another process."""
    with LocalStack(STEPS_BUNDLE, agents=["cook"], workers=0) as stack:
        yield Crew(stack)


def call(name: str, args: str = "{}", call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": args}}


def codes(results: list[StepCallResult]) -> list[str | None]:
    return [code_of(result) for result in results]


@pytest.mark.requirement("catalog.per-step")
def test_step_shows_agents_tools_and_runs_models_calls(client: Client) -> None:
    turn = client.turn("plain-cook", "k1")
    step = turn.step({"role": "user"}, timeout=PATIENCE)
    assert (step.index, step.catalog.names, step.blocks) == (0, ALL, ())

    results = step.run(
        [
            call("stove__cook", '{"dish": "soup"}', "c1"),
            call("stove__burn", call_id="c2"),
            call("stove__cook", '{"dish": 7}', "c3"),
            call("stove__cook", "{", "c4"),
            call("stove__context", call_id="c5"),
        ],
        timeout=PATIENCE,
    )

    assert [result.tool_call_id for result in results] == ["c1", "c2", "c3", "c4", "c5"]
    assert codes(results) == [None, "E_TOOL", "E_TOOL_INVALID_ARGS", "E_TOOL_INVALID_ARGS", None]
    assert results[0].output["dish"] == "soup"
    assert results[4].output["turnId"] == turn.id
    assert results[4].message["tool_call_id"] == "c5"
    assert [result.message["role"] for result in results] == ["tool"] * 5


def shown_to(output: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the id and the message that the handler was shown, and the middleware."""
    return [(seen["toolCallId"], seen["message"]) for seen in (output, output["seen"])]


LOOK = {"name": "stove__context", "arguments": '{"seen": true}'}


@pytest.mark.requirement("context.message", "context.message.holds-the-call", "message.source")
def test_calls_of_step_are_shown_models_whole_message(client: Client) -> None:
    turn = client.turn("cook", "whole")
    step = turn.step(timeout=PATIENCE)
    reply = {"role": "assistant", "content": "I look twice.", "tool_calls": [
        {"id": "c1", "type": "function", "function": LOOK},
        {"id": "c2", "function": {"name": "stove__cook", "arguments": '{"dish": "soup"}'}},
        {"id": "c3", "type": "function", "function": LOOK},
    ]}  # fmt: skip

    first, cooked, third = step.run(reply, timeout=PATIENCE)

    assert (first.message["tool_call_id"], cooked.status) == ("c1", "ok")
    told = [*shown_to(first.output), *shown_to(third.output)]
    assert [call_id for call_id, _ in told] == ["c1", "c1", "c3", "c3"]
    assert all(message == told[0][1] for _, message in told)
    said = told[0][1]
    assert said["source"] == {"type": "assistant", "stepId": step.id}
    text, *calls = said["data"]["content"]
    assert (said["data"]["role"], text) == ("assistant", {"type": "text", "text": "I look twice."})
    assert [(one["toolCallId"], one["toolName"]) for one in calls] == [
        ("c1", "stove__context"),
        ("c2", "stove__cook"),
        ("c3", "stove__context"),
    ]


@pytest.mark.requirement("result.tool-call-id", "context.message.holds-the-call")
@pytest.mark.parametrize("asked", ["a producer", "an agent"])
def test_id_repeated_in_later_step_is_shown_unchanged(client: Client, asked: str) -> None:
    wanted = [{"id": "call_1", "name": "stove__context", "args": {"seen": True}}]
    if asked == "a producer":
        turn = client.turn("cook", "repeated")
        results = [turn.step(timeout=PATIENCE).run(wanted, timeout=PATIENCE)[0] for _ in range(3)]
        assert len({result.meta.id for result in results}) == 3
        stored = [client.pending(result.meta.id).result(PATIENCE) for result in results]
        assert [result.tool_call_id for result in (*results, *stored)] == ["call_1"] * 6
        outputs = [result.output for result in results]
    else:
        steps = [{"calls": wanted}] * 3
        told = client.request("chef", {"steps": steps}, timeout=PATIENCE).response
        parts = [message["data"]["content"][0] for step in told["steps"] for message in step["messages"]]
        assert [part["toolCallId"] for part in parts] == ["call_1"] * 3
        outputs = [part["output"]["value"] for part in parts]
    for output in outputs:
        for call_id, message in shown_to(output):
            assert call_id == "call_1"
            assert [part["toolCallId"] for part in message["data"]["content"]] == ["call_1"]
    assert len({output["message"]["source"]["stepId"] for output in outputs}) == 3


@pytest.mark.requirement("guard.refusal-form", "guard.refuse-outside-catalog")
def test_tool_outside_step_is_refused_as_specified(client: Client) -> None:
    step = client.turn("plain-cook").step(timeout=PATIENCE)
    [result] = step.run([{"id": "c", "name": "unknown__action", "args": {}}], timeout=PATIENCE)
    assert result.status == "error"
    assert result.error is not None
    error = result.error.to_wire()
    assert error.pop("suggestion")
    assert error.pop("helpUrl").endswith("E_TOOL_NOT_IN_CATALOG")
    assert error == {
        "code": "E_TOOL_NOT_IN_CATALOG",
        "name": "ToolNotInCatalogError",
        "message": "Tool 'unknown__action' is not available in the current Tool Catalog.",
    }


def test_calls_of_producers_step_begin_at_their_time(client: Client) -> None:
    step = client.turn("plain-cook").step(timeout=PATIENCE)
    begun = datetime.now(UTC)

    [result] = step.run([call("stove__cook", '{"dish": "soup"}')], delay=0.4, timeout=PATIENCE)

    assert result.error is None
    assert datetime.fromisoformat(result.meta.started_at or "") >= begun + timedelta(seconds=0.4)
    with pytest.raises(ToolInputValidationError, match="delay and not_before: give one of the two"):
        step.run([], delay=1, not_before="2026-12-01T09:00Z")


@pytest.mark.parametrize("agent", ["chef", "baker"])
def test_calls_of_agents_step_begin_at_their_time(client: Client, agent: str) -> None:
    begun = datetime.now(UTC)
    answer = client.request(
        agent, {"steps": [{"calls": [call("stove__context")], "delay": 0.4}]}, timeout=PATIENCE
    )

    assert len(answer.response["steps"][0]["messages"]) == 1
    assert datetime.now(UTC) >= begun + timedelta(seconds=0.4)


@pytest.mark.requirement("catalog.step-middleware", "guard.refuse-outside-catalog")
@pytest.mark.parametrize("agent", ["cook", "apprentice"])
def test_step_middleware_takes_tool_out_of_catalog(client: Client, agent: str) -> None:
    step = client.turn(agent).step({"hide": ["stove__burn"]}, timeout=PATIENCE)
    assert step.catalog.names == ("stove__cook", "stove__context")
    results = step.run([call("stove__burn", call_id="c1"), call("stove__context", call_id="c2")])
    assert codes(results) == ["E_TOOL_NOT_IN_CATALOG", None]


@pytest.mark.requirement("catalog.step-middleware", "registry.all-tools", "guard.refuse-outside-catalog")
@pytest.mark.parametrize("source", ["config", "extension"])
def test_step_middleware_adds_unlisted_bundle_tool_to_catalog(client: Client, source: str) -> None:
    named = ("cellar__cook", "cellar__context", "cellar__none")
    items = [{"name": name, "source": {"type": source, "name": "cellar"}} for name in named]
    turn = client.turn("cook")
    step = turn.step({"add": items}, timeout=PATIENCE)

    results = step.run(
        [
            call("cellar__cook", '{"dish": "wine"}', "c1"),
            call("cellar__cook", '{"dish": 7}', "c2"),
            call("cellar__none", call_id="c3"),
        ],
        timeout=PATIENCE,
    )
    held = client.call("cook", "cellar__context", turn_id=turn.id, step_id=step.id, timeout=PATIENCE)
    later = turn.step(timeout=PATIENCE).run(
        [call("cellar__cook", '{"dish": "wine"}', "c4")], timeout=PATIENCE
    )
    alone = client.call("cook", "cellar__cook", {"dish": "wine"}, timeout=PATIENCE)

    assert step.catalog.names == (*ALL, *named)
    assert codes(results) == [None, "E_TOOL_INVALID_ARGS", "E_TOOL_NOT_FOUND"]
    assert results[0].output["dish"] == "wine"
    assert (held.status, held.meta.awaits) == ("pending", "approval")
    assert codes(later) == ["E_TOOL_NOT_IN_CATALOG"]
    assert code_of(alone) == "E_TOOL_NOT_IN_CATALOG"


@pytest.mark.requirement("catalog.per-step")
def test_each_step_of_turn_has_own_catalog(client: Client) -> None:
    turn = client.turn("cook")
    narrow = turn.step({"hide": ["stove__burn"]}, timeout=PATIENCE)
    wide = turn.step(timeout=PATIENCE)
    assert (narrow.index, wide.index) == (0, 1)
    burn = [call("stove__burn")]
    assert codes(narrow.run(burn, timeout=PATIENCE)) == ["E_TOOL_NOT_IN_CATALOG"]
    assert codes(wide.run(burn, timeout=PATIENCE)) == ["E_TOOL"]


@pytest.mark.requirement("guard.refuse-outside-catalog", "catalog.step-middleware")
def test_narrowed_catalog_is_enforced_on_another_machines_worker(relief: Crew) -> None:
    [opener] = relief.muster()
    client = relief.stack.client
    step = client.turn("cook").step({"hide": ["stove__burn"]}, timeout=PATIENCE)
    relief.stack.stop_worker(opener)
    other = relief.add()

    results = step.run([call("stove__burn", call_id="c1"), call("stove__cook", '{"dish": "x"}', "c2")])

    assert codes(results) == ["E_TOOL_NOT_IN_CATALOG", None]
    assert results[1].output["pid"] == other.pid
    assert code_of(client.call("cook", "stove__burn", timeout=PATIENCE)) == "E_TOOL"


@pytest.mark.requirement("dynamic.visible-next-step")
@pytest.mark.parametrize("agent", ["plain-cook", "cook"])
def test_step_with_foreign_key_is_not_opened(steps_stack: LocalStack, client: Client, agent: str) -> None:
    key = Keys().step(call_identity(agent, "damaged", "t-damaged", opening_id(0, 0)))
    turn = client.turn(agent, "damaged", turn_id="t-damaged")
    with Redis.from_url(steps_stack.redis_url) as redis:
        redis.set(key, "of another program")
        with pytest.raises(ToolError, match="WRONGTYPE") as raised:
            turn.step(timeout=PATIENCE)
        redis.delete(key)
    assert raised.value.code == "E_RECORD_DAMAGED"
    assert turn.step(timeout=PATIENCE).index == 0


def test_tool_registered_during_step_shows_from_next_step(client: Client) -> None:
    turn = client.turn("cook")
    first = turn.step({"register": ["today__first"]}, timeout=PATIENCE)
    second = turn.step(timeout=PATIENCE)
    assert "today__first" not in first.catalog.names
    assert second.catalog.names[-1] == "today__first"
    asked = [{"id": "c", "name": "today__first", "args": {"n": 1}}]
    assert codes(first.run(asked, timeout=PATIENCE)) == ["E_TOOL_NOT_IN_CATALOG"]
    [result] = second.run(asked, timeout=PATIENCE)
    assert result.output["special"] == {"n": 1}


def test_step_tool_is_unavailable_without_step(client: Client) -> None:
    client.turn("cook").step({"register": ["today__second"]}, timeout=PATIENCE)
    result = client.call("cook", "today__second", timeout=PATIENCE)
    assert error_of(result) == (
        "E_TOOL_NOT_IN_CATALOG",
        "Tool 'today__second' is not available in the current Tool Catalog.",
    )


@pytest.mark.requirement("dynamic.visible-next-step")
def test_worker_that_lacks_tool_runs_steps_middlewares_once(relief: Crew, tmp_path: Path) -> None:
    [opener] = relief.muster()
    turn = relief.stack.client.turn("cook")
    diary = tmp_path / "diary"
    wish = {"register": ["today__third"], "diary": str(diary)}
    turn.step({"register": ["today__third"]}, timeout=PATIENCE)
    step = turn.step(wish, timeout=PATIENCE)
    relief.stack.stop_worker(opener)
    other = relief.add()

    asked = [{"id": f"c{n}", "name": "today__third", "args": {"n": n}} for n in range(8)]
    results = step.run(asked, timeout=PATIENCE)

    assert [result.output for result in results] == [
        {"special": {"n": n}, "pid": other.pid, "user": None} for n in range(8)
    ]
    opened_here = [
        line for line in diary.read_text(encoding="utf-8").splitlines() if line.endswith(f"in {other.pid}")
    ]
    assert opened_here == [f"step 1 in {other.pid}"]


@pytest.mark.requirement("dynamic.visible-next-step")
def test_next_step_shows_new_tool_in_any_worker(relief: Crew) -> None:
    [opener] = relief.muster()
    turn = relief.stack.client.turn("cook")
    turn.step({"register": ["today__fourth"]}, timeout=PATIENCE)
    relief.stack.stop_worker(opener)
    relief.add()
    turn.step(timeout=PATIENCE)
    third = turn.step({"register": ["today__fourth"]}, timeout=PATIENCE)
    assert "today__fourth" in third.catalog.names
    [result] = third.run([{"id": "c", "name": "today__fourth"}], timeout=PATIENCE)
    assert result.status == "ok"


@pytest.mark.requirement("dynamic.visible-next-step")
def test_worker_lacking_tool_runs_step_that_registered_it(relief: Crew, tmp_path: Path) -> None:
    [opener] = relief.muster()
    turn = relief.stack.client.turn("cook")
    diary = tmp_path / "diary"
    turn.step({"register": ["today__sixth"], "diary": str(diary)}, timeout=PATIENCE)
    step = turn.step(timeout=PATIENCE)
    relief.stack.stop_worker(opener)
    other = relief.add()

    asked = [{"id": f"c{n}", "name": "today__sixth", "args": {"n": n}} for n in range(4)]
    results = step.run(asked, timeout=PATIENCE)

    assert [result.output["pid"] for result in results] == [other.pid] * 4
    written = diary.read_text(encoding="utf-8").splitlines()
    assert written.count(f"step 0 in {other.pid}") == 1


@pytest.mark.requirement("dynamic.visible-next-step")
def test_next_step_elsewhere_lacks_tool_unregistered_in_call(relief: Crew) -> None:
    [opener] = relief.muster()
    turn = relief.stack.client.turn("cook")
    turn.step({"register": ["today__eighth"]}, timeout=PATIENCE)
    step = turn.step(timeout=PATIENCE)
    [result] = step.run([("today__eighth", {"unregister": "today__eighth"})], timeout=PATIENCE)
    assert result.status == "ok"
    relief.stack.stop_worker(opener)
    relief.add()

    following = turn.step(timeout=PATIENCE)

    assert ("today__eighth" in step.catalog.names, "today__eighth" in following.catalog.names) == (
        True,
        False,
    )
    assert codes(following.run([("today__eighth", {})], timeout=PATIENCE)) == ["E_TOOL_NOT_IN_CATALOG"]


def test_tool_of_turn_is_its_own(client: Client) -> None:
    ours, theirs = (client.turn("cook", user, auth={"user": user}) for user in ("ours", "theirs"))
    for turn in (ours, theirs):
        turn.step({"register": ["today__seventh"]}, timeout=PATIENCE)
    assert "today__seventh" not in client.turn("cook").step(timeout=PATIENCE).catalog.names
    asked = [{"id": "c", "name": "today__seventh"}]
    results = [turn.step(timeout=PATIENCE).run(asked, timeout=PATIENCE)[0] for turn in (ours, theirs)]
    assert [result.output["user"] for result in results] == [{"user": "ours"}, {"user": "theirs"}]


def test_worker_with_other_turns_tool_runs_own_registering_step(
    relief: Crew,
) -> None:
    [opener] = relief.muster()
    ours, theirs = (relief.stack.client.turn("cook", auth={"user": user}) for user in ("ours", "theirs"))
    wish = {"register": ["today__eighth"]}
    ours.step(wish, timeout=PATIENCE)
    relief.stack.stop_worker(opener)
    relief.add()
    theirs.step(wish, timeout=PATIENCE)

    [result] = ours.step(timeout=PATIENCE).run([{"id": "c", "name": "today__eighth"}], timeout=PATIENCE)

    assert result.output["user"] == {"user": "ours"}


def test_tool_no_worker_has_is_not_found(relief: Crew, tmp_path: Path) -> None:
    [opener] = relief.muster()
    turn = relief.stack.client.turn("cook")
    wish = {"register": ["today__fifth"], "only": str(tmp_path / "once")}
    turn.step(wish, timeout=PATIENCE)
    step = turn.step(wish, timeout=PATIENCE)
    relief.stack.stop_worker(opener)
    relief.add()
    [result] = step.run([{"id": "c", "name": "today__fifth"}], timeout=PATIENCE)
    code, message = error_of(result)
    assert code == "E_TOOL_NOT_FOUND"
    assert "it is not registered in this worker" in message


def test_blocks_reach_producer_most_important_first(client: Client) -> None:
    blocks = [
        {"type": "a"},
        {"type": "b", "priority": 5},
        {"type": "c", "priority": 5},
        {"type": "d", "data": 1},
    ]
    step = client.turn("cook").step({"blocks": blocks}, timeout=PATIENCE)
    assert [block["type"] for block in step.blocks] == ["b", "c", "a", "d"]


def test_middleware_work_after_next_precedes_model_call(client: Client, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    step = client.turn("cook").step({"diary": str(diary)}, timeout=PATIENCE)
    assert [line.rpartition(" ")[0] for line in diary.read_text(encoding="utf-8").splitlines()] == [
        "step 0 in",
        "step 0 out []",
    ]
    assert step.catalog.names[:3] == ALL  # the middleware clears it, too late


def test_middlewares_see_for_whom_turn_is(client: Client) -> None:
    turn = client.turn("cook", auth={"subject": "u1"}, origin={"channel": "web"})
    step = turn.step({"tell": True}, timeout=PATIENCE)
    assert step.blocks[0]["data"] == {"auth": {"subject": "u1"}, "origin": {"channel": "web"}}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"raise": "no soup"}, r"menu\.menu raised ValueError: no soup"),
        ({"skip": True}, r"did not call next\(\)"),
        ({"blocks": ["soup"]}, "a block of the Step is an object"),
    ],
)
def test_step_unopened_by_middlewares_raises_and_may_be_retried(
    client: Client, message: dict[str, Any], said: str
) -> None:
    turn = client.turn("cook")
    with pytest.raises(MiddlewareError, match=f"(?i){said}"):
        turn.step(message, timeout=PATIENCE)
    assert turn.step({}, timeout=PATIENCE).index == 0


def test_turn_has_so_many_steps_and_no_more(client: Client) -> None:
    turn = client.turn("plain-cook")
    assert [turn.step(timeout=PATIENCE).index for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(StepLimitError, match="4 Steps") as raised:
        turn.step(timeout=PATIENCE)
    assert raised.value.code == "E_STEP_LIMIT"
    assert "maxStepsPerTurn" in (raised.value.suggestion or "")


def test_step_of_other_turn_instance_or_agent_is_refused(client: Client) -> None:
    step = client.turn("plain-cook", "mine", turn_id="t1").step(timeout=PATIENCE)
    own: dict[str, Any] = {"instance_key": "mine", "turn_id": "t1", "step_id": step.id, "timeout": PATIENCE}
    assert client.call("plain-cook", "stove__context", **own).status == "ok"
    for agent, changed in [
        ("plain-cook", {"turn_id": "t2"}),
        ("plain-cook", {"instance_key": "yours"}),
        ("cook", {}),
        ("plain-cook", {"step_id": "step-0"}),
        ("plain-cook", {"step_id": "00000000-0000-0000-0000-000000000000"}),
        ("plain-cook", {"step_id": "x" * 5000}),
    ]:
        result = client.call(agent, "stove__context", **{**own, **changed})
        code, message = error_of(result)
        assert code == "E_TOOL_NOT_IN_CATALOG"
        assert message.endswith("is unknown or has expired.")


def test_systems_tools_stand_in_no_step(client: Client) -> None:
    step = client.turn("plain-cook").step(timeout=PATIENCE)
    asked = [
        {"id": "c1", "name": "goondan__step", "args": {"index": 3}},
        {"id": "c2", "name": "goondan__read-output", "args": {"path": "x"}},
        {"id": "c3", "name": "goondan__delegate", "args": {}},
        {"id": "c4", "name": "", "args": {}},
    ]
    assert codes(step.run(asked, timeout=PATIENCE)) == ["E_TOOL_NOT_IN_CATALOG"] * 4


def test_turn_begun_again_gets_same_steps_and_results(client: Client) -> None:
    def go() -> tuple[str, str, str, str]:
        turn = client.turn("plain-cook", "again", turn_id="turn-again")
        first = turn.step({"n": 1}, timeout=PATIENCE)
        [one] = first.run([call("stove__context")], timeout=PATIENCE)
        second = turn.step({"n": 2}, timeout=PATIENCE)
        [two] = second.run([call("stove__context")], timeout=PATIENCE)
        return first.id, one.meta.id, second.id, two.meta.id

    assert go() == go()
    assert len(set(go())) == 4
    with pytest.raises(ToolCallConflictError):
        client.turn("plain-cook", "again", turn_id="turn-again").step({"n": 7}, timeout=PATIENCE)


def test_turn_continues_when_results_precede_known_acceptance(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    glance, has_come = ResultListener.glance, list[bool]()
    monkeypatch.setattr(results, "NAP_SECONDS", 2 * PATIENCE)
    client.call("plain-cook", "stove__context", timeout=PATIENCE)
    wait_until(lambda: not client._calls.listener._reading.locked())

    def note(listener: ResultListener, expected: Expected) -> None:
        wait_until(lambda: not listener._reading.locked())  # its own thread may look once more
        glance(listener, expected)
        has_come.append(expected.is_there)

    monkeypatch.setattr(results, "GLANCE_SECONDS", 2 * PATIENCE)
    monkeypatch.setattr(ResultListener, "glance", note)
    turn = client.turn("plain-cook", "early")
    for index in range(2):
        step = turn.step(timeout=PATIENCE)
        ran = step.run([call("stove__context", call_id=f"c{n}") for n in range(3)], timeout=PATIENCE)
        assert (step.index, codes(ran)) == (index, [None, None, None])
    assert has_come == [True] * 4


def test_step_that_has_expired_is_not_given_again(steps_stack: LocalStack, client: Client) -> None:
    def open_step() -> str:
        return client.turn("plain-cook", "late", turn_id="turn-late").step(timeout=PATIENCE).id

    with Redis.from_url(steps_stack.redis_url) as redis:
        redis.delete(Keys().step(open_step()))
    with pytest.raises(CallNotFoundError, match="has expired"):
        open_step()


def test_record_of_turn_tells_its_messages_and_calls(client: Client) -> None:
    turn = client.turn("plain-cook", "recorded")
    step = turn.step({"role": "user", "content": "soup"}, timeout=PATIENCE)
    results = step.run([call("stove__context", call_id="a"), call("stove__burn", call_id="b")])
    opened, ran = turn.record()
    assert (opened.step_id, opened.message) == (step.id, {"role": "user", "content": "soup"})
    assert (ran.index, ran.call_ids) == (0, tuple(result.meta.id for result in results))


def test_all_calls_of_turn_are_in_its_trace(client: Client) -> None:
    turn = client.turn("plain-cook", "traced")
    turn.step(timeout=PATIENCE).run([call("stove__context"), call("stove__burn", call_id="c2")])
    tools = {node.tool for node in client.trace(turn.id).nodes}
    assert tools == {"goondan__step", "stove__context", "stove__burn"}


@pytest.mark.parametrize("message", ["soup", 7, ["soup"]])
def test_step_begins_with_object(client: Client, message: Any) -> None:
    with pytest.raises(ToolInputValidationError, match="begins with an object"):
        client.turn("plain-cook").step(message)


def test_step_timed_out_without_worker_opens_same_later(relief: Crew) -> None:
    for worker in relief.stack.workers:
        relief.stack.stop_worker(worker)
    turn = relief.stack.client.turn("cook")
    with pytest.raises(WaitTimeout):
        turn.step({"n": 1}, timeout=0.2)
    relief.muster()
    assert turn.step({"n": 1}, timeout=PATIENCE).index == 0


def test_async_code_opens_steps_and_runs_their_calls(steps_stack: LocalStack) -> None:
    async def go() -> list[StepCallResult]:
        async with await AsyncClient.connect(steps_stack.redis_url) as client:
            turn = client.turn("cook")
            step = await turn.step({"hide": ["stove__burn"]}, timeout=PATIENCE)
            assert (step.index, len(step.blocks), len(await turn.record())) == (0, 0, 1)
            asked = [
                {"type": "tool_use", "id": "t1", "name": "stove__cook", "input": {"dish": "soup"}},
                {"type": "tool_use", "id": "t2", "name": "stove__burn", "input": {}},
            ]
            return await step.run(asked, timeout=PATIENCE)

    first, second = asyncio.run(go())
    assert (first.message["tool_use_id"], first.message.get("is_error")) == ("t1", None)
    assert (second.message["tool_use_id"], second.message["is_error"]) == ("t2", True)


@pytest.mark.requirement("guard.registry-mode")
def test_registry_mode_runs_and_logs_any_bundle_tool() -> None:
    with LocalStack(STEPS_BUNDLE, environment={"GOONDAN_SWARM": "open"}) as stack:
        result = stack.client.call("plain-cook", "cellar__cook", {"dish": "wine"}, timeout=PATIENCE)
        step = stack.client.turn("plain-cook").step(timeout=PATIENCE)
        results = step.run(
            [{"id": "c1", "name": "cellar__cook"}, {"id": "c2", "name": "nothing__here"}], timeout=PATIENCE
        )
        log = stack.log(stack.workers[0])
    assert result.output["dish"] == "wine"
    assert "cellar__cook" not in step.catalog.names
    assert codes(results) == [None, "E_TOOL_NOT_IN_CATALOG"]
    assert log.count("call.admitted_outside_catalog") == 2


@pytest.mark.requirement("guard.registry-mode")
def test_other_bundle_tools_are_uncallable_without_policy(client: Client) -> None:
    step = client.turn("plain-cook").step(timeout=PATIENCE)
    in_step = step.run([call("cellar__cook", '{"dish": "wine"}')], timeout=PATIENCE)
    alone = client.call("plain-cook", "cellar__cook", timeout=PATIENCE)
    assert [code_of(result) for result in (*in_step, alone)] == ["E_TOOL_NOT_IN_CATALOG"] * 2


def test_tool_search_results_appear_from_next_step(client: Client) -> None:
    turn = client.turn("librarian", "reader")
    first = turn.step(timeout=PATIENCE)
    assert first.catalog.names == ("stove__cook", "stove__context", "tool-search__search")
    found, nothing = first.run(
        [
            call("tool-search__search", '{"query": "JSON array flatten"}', "c1"),
            call("tool-search__search", '{"query": "no such thing"}', "c2"),
        ],
        timeout=PATIENCE,
    )
    assert [one["name"] for one in found.output["results"]] == ["json-query__flatten"]
    assert nothing.output["results"] == []
    second = turn.step(timeout=PATIENCE)
    assert "json-query__flatten" in second.catalog.names
    many, upper = second.run(
        [
            call("tool-search__search", '{"query": "json", "limit": 2.0}', "c3"),
            call("tool-search__search", '{"query": "text-transform__case", "limit": 0}', "c4"),
        ],
        timeout=PATIENCE,
    )
    assert len(many.output["results"]) == 2
    assert [one["name"] for one in upper.output["results"]] == ["text-transform__case"]
    third = client.turn("librarian", "reader").step(timeout=PATIENCE)
    assert {"json-query__flatten", "text-transform__case"} <= set(third.catalog.names)
    assert client.turn("librarian", "other").step(timeout=PATIENCE).catalog.names == first.catalog.names


def ask(client: Client, agent: str, **plan: Any) -> Any:
    return client.request(agent, plan, timeout=PATIENCE).response


def lines(diary: Path) -> list[str]:
    return [line.rpartition(" ")[0] for line in diary.read_text(encoding="utf-8").splitlines()]


def test_around_agents_entry_middlewares_are_full_onion(client: Client, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    calls = [call("stove__cook", '{"dish": "soup"}'), call("stove__burn", call_id="c2")]
    answer = ask(client, "chef", diary=str(diary), hide=["stove__burn"], steps=[{"calls": calls}, {}])
    assert answer["turn"].startswith("turn-")
    first, second = answer["steps"]
    assert (first["index"], second["index"]) == (0, 1)
    assert first["tools"][:2] == ["stove__cook", "stove__context"]
    assert [message["tool_call_id"] for message in first["messages"]] == ["c1", "c2"]
    assert "E_TOOL_NOT_IN_CATALOG" in first["messages"][1]["content"]
    assert (first["continue"], second["continue"]) == (True, False)
    assert lines(diary) == [
        "turn in",
        "step 0 in",
        "step 0 out [stove__cook,stove__burn]",
        "step 1 in",
        "step 1 out []",
        "turn out",
    ]


def test_step_errors_pass_through_its_middlewares(client: Client, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    answer = ask(client, "chef", diary=str(diary), steps=[{"raise": "LookupError"}, {}])
    assert [step["metadata"] for step in answer["steps"]] == [{"caught": "the soup"}, {}]
    with pytest.raises(HandoffError, match="the soup"):
        ask(client, "chef", diary=str(diary), steps=[{"raise": "ValueError"}])
    assert "step 0 caught the soup" in "\n".join(lines(diary))
    assert lines(diary)[-1] == "turn failed: the soup"


def test_plain_code_opens_steps_too(client: Client) -> None:
    calls = [("stove__cook", {"dish": "bread"}), ("stove__burn", {})]
    message = {"hide": ["stove__burn"]}
    [first, second] = ask(client, "baker", steps=[{"message": message, "calls": calls}, {}])["steps"]
    assert first["tools"] == ["stove__cook", "stove__context"]
    assert first["blocks"] == [{"type": "custom.count", "data": 2}]
    outputs = [message["data"]["content"][0]["output"] for message in first["messages"]]
    assert outputs[0]["value"]["dish"] == "bread"
    assert outputs[1]["value"]["error"]["code"] == "E_TOOL_NOT_IN_CATALOG"
    assert second["tools"] == list(ALL)


@pytest.mark.parametrize("agent", ["chef", "baker"])
def test_agent_turn_is_limited_in_steps(client: Client, agent: str) -> None:
    with pytest.raises(HandoffError, match="4 Steps"):
        ask(client, agent, steps=[{}] * 5)


def test_turn_does_not_end_well_without_required_tool(client: Client) -> None:
    with pytest.raises(HandoffError, match="stove__cook"):
        ask(client, "critic", steps=[{"calls": [call("stove__burn")]}])
    cooked = {"calls": [call("stove__cook", '{"dish": "soup"}')]}
    assert len(ask(client, "critic", steps=[cooked, {}])["steps"]) == 2


def test_model_forgetting_required_tool_is_reminded_limited_times(client: Client) -> None:
    cooked = {"calls": [call("stove__cook", '{"dish": "soup"}')]}
    answer = ask(client, "critic", obeys=True, steps=[{}, cooked, {}])
    assert [step["continue"] for step in answer["steps"]] == [True, True, False]
    assert [block["type"] for block in answer["steps"][1]["blocks"]] == ["required-tools"]
    assert answer["steps"][2]["blocks"] == []
    with pytest.raises(HandoffError, match="required tool"):
        ask(client, "critic", obeys=True, steps=[{}, {}, {}, cooked])
