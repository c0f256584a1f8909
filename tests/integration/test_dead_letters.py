"""Calls that kill every worker that runs them, and what becomes of them. Real workers die here."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from broker_config.connections import connect
from broker_config.settings import Settings
from goondan_tasks.client import Client, PendingCall
from goondan_tasks.contract.errors import (
    AgentNotFoundError,
    CallNotFoundError,
    NotReplayableError,
    WaitTimeout,
)
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, goondan

OUTPUTS_BUNDLE = Path(__file__).parents[1] / "bundles" / "outputs"
PATIENCE = 120


@pytest.fixture(scope="module")
def graveyard() -> Iterator[LocalStack]:
    """A stack whose workers the tests kill; one that lives is left to the next test."""
    environment = {"GOONDAN_LEASE_SECONDS": "2"}
    with LocalStack(OUTPUTS_BUNDLE, agents=["keeper"], workers=0, environment=environment) as stack:
        yield stack


@pytest.fixture
def stack(graveyard: LocalStack) -> LocalStack:
    """The same without dead letters."""
    graveyard.client.act_on_all("drop")
    return graveyard


def settled(stack: LocalStack, call: PendingCall) -> ToolCallResult:
    """Start workers anew until the call has its result."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if all(worker.poll() is not None for worker in stack.workers):
            stack.start_worker()
        with suppress(WaitTimeout):
            return call.result(0.5)
    raise AssertionError(f"no result for {call.id}")


def poison(stack: LocalStack, antidote: Path, **fields: object) -> PendingCall:
    args = {"antidote": str(antidote), "text": "한"}
    wire = {"agentName": "keeper", "toolName": "poison__drink", "args": args, **fields}
    return stack.client.submit_many([wire])[0]


def died(stack: LocalStack, antidote: Path, **fields: object) -> str:
    call = poison(stack, antidote, **fields)
    result = settled(stack, call)
    assert result.error is not None
    assert result.error.code == "E_TOOL_POISONED"
    assert call.status() == "dead"
    return call.id


def test_poison_call_becomes_replayable_dead_letter(stack: LocalStack, tmp_path: Path) -> None:
    antidote, client = tmp_path / "antidote", stack.client
    late = {
        "deadline": "2099-01-01T00:00:00Z",
        "idempotencyKey": "k",
        "correlationId": "c",
        "origin": {"a": 1},
    }
    old = died(stack, antidote, toolCallId="call_1", auth={"user": "u"}, **late)
    [letter] = client.dead_letters()
    assert (letter.id, letter.status, letter.attempt, letter.replayed_by) == (old, "dead", 1, None)
    assert client.dead_letter(old) == letter

    antidote.touch()
    new = client.replay(old)
    result = settled(stack, new)

    assert result.status == "ok"
    assert new.id != old
    assert result.meta.replay_of == old
    assert (result.tool_call_id, result.meta.correlation_id) == ("call_1", "c")
    assert result.output["toolCallId"] == "call_1"
    assert result.output["text"] == "한"
    then, now = client.record(old).call, client.record(new.id).call
    same = ("agent_name", "tool_name", "args", "instance_key", "message", "auth", "origin", "trace_id")
    assert {name: getattr(now, name) for name in same} == {name: getattr(then, name) for name in same}
    assert (now.deadline, now.idempotency_key, now.replay_of) == (None, None, old)
    # the old one is as it was, but for the mark
    error = client.pending(old).result(0).error
    assert error is not None
    assert error.code == "E_TOOL_POISONED"
    assert client.dead_letter(old).replayed_by == new.id


def test_accidental_replay_is_refused_but_deliberate_is_new_call(stack: LocalStack, tmp_path: Path) -> None:
    antidote, client = tmp_path / "antidote", stack.client
    old = died(stack, antidote)
    antidote.touch()
    first = client.replay(old)
    with pytest.raises(NotReplayableError, match=first.id):
        client.replay(old)
    assert client.act_on_all("replay").selected == 0
    second = client.replay(old, again=True)
    assert len({old, first.id, second.id}) == 3
    assert [settled(stack, call).status for call in (first, second)] == ["ok", "ok"]
    assert client.dead_letter(old).replayed_by == second.id


def test_replay_that_was_not_noted_is_same_call(stack: LocalStack, tmp_path: Path) -> None:
    antidote, client = tmp_path / "antidote", stack.client
    old = died(stack, antidote)
    antidote.touch()
    first = client.replay(old)
    with connect(stack.redis_url) as redis:
        redis.hdel(f"goondan:call:{old}", "replayedBy", "replays")
    assert client.replay(old).id == first.id
    assert settled(stack, first).meta.attempt == 1


def test_replay_may_die_and_be_replayed_itself(stack: LocalStack, tmp_path: Path) -> None:
    antidote, client = tmp_path / "antidote", stack.client
    old = died(stack, antidote)
    new = client.replay(old)
    assert settled(stack, new).meta.replay_of == old
    assert {letter.id for letter in client.dead_letters()} == {old, new.id}
    antidote.touch()
    assert settled(stack, client.replay(new.id)).meta.replay_of == new.id


def test_letters_are_found_by_agent_tool_age_and_dropped(stack: LocalStack, tmp_path: Path) -> None:
    client = stack.client
    first, second = (died(stack, tmp_path / "antidote") for _ in range(2))
    found: Callable[..., list[str]] = lambda *args, **wanted: [  # noqa: E731
        letter.id for letter in client.dead_letters(*args, **wanted)
    ]
    assert (
        found() == found("keeper") == found(tool="poison__*") == found(newer_than=PATIENCE) == [second, first]
    )
    assert found(None, 1) == [second]
    assert found("clerk") == found(tool="Poison*") == found(older_than=PATIENCE) == []
    client.drop(first)
    assert found() == [second]
    for gone in (first, "nobody"):
        with pytest.raises(CallNotFoundError, match="not a dead letter"):
            client.drop(gone)
    with pytest.raises(CallNotFoundError, match="dropped"):
        client.dead_letter(first)
    assert client.pending(first).result(0).status == "error"
    with connect(stack.redis_url) as redis:
        assert 0 < redis.ttl("goondan:dead-letters:keeper") <= 86_400
        redis.hset(f"goondan:call:{second}", "call", b'{"v":2}')
    assert found() == []
    with pytest.raises(CallNotFoundError, match="cannot read"):
        client.replay(second)
    client.drop(second)
    assert client.act_on_all("drop").done == 0


def test_failed_call_can_be_replayed_by_id(stack: LocalStack, tmp_path: Path) -> None:
    antidote, client = tmp_path / "antidote", stack.client
    unknown = poison(stack, antidote, toolName="poison__sip")
    expired = poison(stack, antidote, deadline="2020-01-01T00:00:00Z")
    codes = [error.code for call in (unknown, expired) if (error := settled(stack, call).error)]
    assert codes == ["E_TOOL_OUTCOME_UNKNOWN", "E_TOOL_EXPIRED"]
    assert client.dead_letters() == []
    antidote.touch()
    replays = [client.replay(call.id) for call in (unknown, expired)]
    assert [settled(stack, call).status for call in replays] == ["ok", "ok"]
    assert client.record(expired.id).replayed_by == replays[1].id


def test_call_not_replayable_is_refused(stack: LocalStack, tmp_path: Path) -> None:
    antidote, client = tmp_path / "antidote", stack.client
    antidote.touch()
    for worker in stack.workers:
        stack.stop_worker(worker)
    queued = poison(stack, antidote)
    with pytest.raises(NotReplayableError, match="has not ended: it is queued"):
        client.replay(queued.id)
    with pytest.raises(CallNotFoundError, match="it is queued"):
        client.dead_letter(queued.id)
    assert settled(stack, queued).status == "ok"
    with pytest.raises(NotReplayableError, match="has succeeded"):
        client.replay(queued.id)
    not_json = client.submit("keeper", "poison__drink", {"antidote": float("nan")})
    assert settled(stack, not_json).status == "error"
    with pytest.raises(NotReplayableError, match="was refused"):
        client.replay(not_json.id)
    for nobody in ("nobody", "", "\ud800", "x" * 500):
        with pytest.raises(CallNotFoundError):
            client.replay(nobody)


def test_replay_to_removed_agent_is_refused(stack: LocalStack, tmp_path: Path) -> None:
    old = died(stack, tmp_path / "antidote")
    with connect(stack.redis_url) as redis:
        redis.delete("goondan:agents")
    with Client(Settings(redis_url=stack.redis_url)) as stranger:
        assert [letter.id for letter in stranger.dead_letters("keeper")] == [old]
        with pytest.raises(AgentNotFoundError):
            stranger.replay(old)
    assert stack.client.dead_letter(old).replayed_by is None


def test_command_lists_shows_replays_and_drops(stack: LocalStack, tmp_path: Path) -> None:
    env = environment(redis_url=stack.redis_url)
    letters = [died(stack, tmp_path / "antidote", auth={"token": "t0ps3cret"}) for _ in range(2)]

    def run(*arguments: str) -> tuple[int, object]:
        done = goondan("dead-letters", *arguments, "--json", env=env)
        return done.exit_code, done.document

    def error_of(*arguments: str) -> tuple[int, str]:
        code, document = run(*arguments)
        return code, json.loads(json.dumps(document))["error"]["code"]

    listed = goondan("dead-letters", "list", "--agent", "keeper", "--json", env=env).document
    shown = goondan("dead-letters", "show", letters[0][:9], env=env)
    assert [row["id"] for row in listed] == letters[::-1]
    assert shown.exit_code == 0
    assert "한" in shown.stdout
    assert "E_TOOL_POISONED" in shown.stdout
    assert "t0ps3cret" not in shown.stdout
    assert error_of("list", "--agent", "keper") == (3, "E_AGENT_NOT_FOUND")
    assert error_of("replay", "nobody") == (2, "E_CALL_NOT_FOUND")

    code, replayed = run("replay", letters[0])
    assert (code, [row["id"] for row in json.loads(json.dumps(replayed))]) == (0, [letters[0]])
    assert error_of("replay", letters[0]) == (2, "E_CALL_NOT_REPLAYABLE")
    many = goondan("dead-letters", "replay", "--all", "--yes", "--json", env=env).document
    assert {row["id"] for row in many} == {*letters[1:]}
    assert run("drop", letters[0]) == (0, {"dropped": 1})
    assert error_of("drop", letters[0]) == (2, "E_CALL_NOT_FOUND")
    assert run("drop", "--tool", "poison__*", "--yes") == (0, {"dropped": 1})
    assert run("list") == (0, [])


def test_poison_call_dies_after_last_attempt_sparing_others(stack: LocalStack, tmp_path: Path) -> None:
    letter = poison(stack, tmp_path / "antidote", toolName="poison__gulp")
    others = [stack.client.submit("keeper", "load__value", {"value": number}) for number in range(20)]
    result = settled(stack, letter)
    assert result.error is not None
    assert result.error.code == "E_TOOL_POISONED"
    assert result.meta.attempt >= 3  # a claim whose worker was lost before it began is one more
    outcomes = [settled(stack, call) for call in others]
    lost = {outcome.error.code for outcome in outcomes if outcome.error}
    assert lost <= {"E_TOOL_OUTCOME_UNKNOWN"}
    assert settled(stack, stack.client.submit("keeper", "load__value", {"value": 1})).status == "ok"
