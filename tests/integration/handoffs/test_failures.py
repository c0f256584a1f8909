"""Agents that fail, are too slow, or answer when nobody wants to know any more."""

from collections.abc import Callable
from pathlib import Path

import pytest

from goondan_tasks.client import Client
from goondan_tasks.contract.errors import HandoffError, HandoffTimeoutError, ToolError
from tests.integration.handoffs.notebook import Notebook
from tests.integration.handoffs.words import TELL, Words, ask
from tests.waiting import wait_until

PATIENCE = 60


def deaf(notes: Notebook, until: Path) -> Words:
    """Let a plain agent wait for a file, whoever tells it to stop."""
    return {"do": "wait", "deaf": True, "log": notes.path, "until": str(until)}


def refused_in_time(notes: Notebook, too_much: Callable[[], object], match: str | None = None) -> None:
    """Ask until whoever is too slow has begun in time: what had no time to begin is not told to stop."""

    def has_begun() -> bool:
        with pytest.raises(HandoffTimeoutError, match=match):
            too_much()
        return bool(notes.told())

    wait_until(has_begun)


def note(notes: Notebook, text: str) -> Words:
    """Let an agent leave a note."""
    return {"do": "note", "log": notes.path, "note": text}


@pytest.mark.requirement("handoff.failure-is-a-result")
@pytest.mark.parametrize("tool", ["messenger__ask", "messenger__ask-async"])
@pytest.mark.parametrize(
    ("target", "code", "said"),
    [("bob", "E_AGENT_FAILED", "on purpose"), ("cid", "E_AGENT_FAILED", "on purpose"),
     ("nobody", "E_AGENT_NOT_FOUND", "No agent 'nobody'")],
)  # fmt: skip
def test_failed_handoff_gives_tool_call_structured_error(
    client: Client, tool: str, target: str, code: str, said: str
) -> None:
    args = {"of": target, "event": {"input": {"do": "fail", "why": "on purpose"}}}
    result = client.call("ann", tool, args, timeout=PATIENCE)
    assert (result.status, result.output) == ("error", None)
    assert result.error is not None
    assert (result.error.code, bool(result.error.suggestion)) == (code, True)
    assert said in result.error.message


@pytest.mark.parametrize("asked", ["ann", "bob"])
def test_asker_gets_error(client: Client, asked: str) -> None:
    with pytest.raises(HandoffError, match="on purpose") as raised:
        client.request(asked, {"do": "fail", "why": "on purpose"}, timeout=PATIENCE)
    assert raised.value.code == "E_AGENT_FAILED"
    assert raised.value.suggestion


@pytest.mark.parametrize(("asker", "asked"), [("ann", "bob"), ("bob", "ann"), ("north", "east")])
def test_error_passes_through_chain_with_its_code(client: Client, asker: str, asked: str) -> None:
    with pytest.raises(HandoffError, match="on purpose") as raised:
        client.request(asker, ask(asked, {"do": "fail", "why": "on purpose"}), timeout=PATIENCE)
    assert raised.value.code == "E_AGENT_FAILED"


@pytest.mark.parametrize("agent", ["ann", "bob"])
def test_agent_asked_for_no_json_fails(client: Client, agent: str) -> None:
    with pytest.raises(HandoffError) as raised:
        client.request(agent, {"do": "none of its deeds"}, timeout=PATIENCE)
    assert raised.value.code == "E_AGENT_FAILED"


@pytest.mark.requirement("runtime.request.timeout")
@pytest.mark.parametrize(
    ("asker", "asked"), [("ann", "bob"), ("bob", "ann"), ("north", "east"), ("east", "north")]
)
def test_slow_agent_is_cancelled_at_askers_timeout(
    client: Client, notes: Notebook, tmp_path: Path, asker: str, asked: str
) -> None:
    slow = {"do": "wait", "log": notes.path, "until": str(tmp_path / "never")}
    asking = ask(asked, slow, options={"timeoutMs": 500})
    refused_in_time(
        notes,
        lambda: client.request(asker, asking, instance_key="slow", timeout=PATIENCE),
        match=r"within 0\.5 s",
    )
    wait_until(lambda: notes.told() == ["start", "cancelled"])
    assert client.request(asked, 1, instance_key="slow", timeout=PATIENCE).response == 1


@pytest.mark.parametrize("asked", ["ann", "bob"])
def test_slow_agent_is_cancelled_at_outside_timeout(
    client: Client, notes: Notebook, tmp_path: Path, asked: str
) -> None:
    slow = {"do": "wait", "log": notes.path, "until": str(tmp_path / "never")}
    refused_in_time(notes, lambda: client.request(asked, slow, timeout=0.5))
    wait_until(lambda: notes.told() == ["start", "cancelled"])


@pytest.mark.parametrize("asked", ["ann", "bob"])
def test_error_at_own_limit_names_agent_and_instance(
    client: Client, notes: Notebook, tmp_path: Path, asked: str
) -> None:
    slow = {"do": "wait", "log": notes.path, "until": str(tmp_path / "never")}
    request = client.request(asked, slow, instance_key="own limit", is_async=True, timeout=2)
    error = client.pending(request.correlation_id).result(PATIENCE).error
    assert error is not None
    assert (error.code, error.message) == (
        "E_HANDOFF_TIMEOUT",
        f"{asked}@own limit did not finish within 2 s.",
    )


def test_limit_of_waiting_agent_holds_though_slot_is_taken(
    client: Client, notes: Notebook, tmp_path: Path
) -> None:
    """The only place of its worker has been given to another agent, for as long as that likes."""
    until = tmp_path / "go on"
    slow = {"do": "wait", "log": notes.path, "until": str(tmp_path / "never")}
    asked = client.request("east", ask("bob", slow), instance_key="away", is_async=True, timeout=3)
    wait_until(lambda: notes.told() == ["start"])
    hog = client.request("south", deaf(notes, until), instance_key="hog", is_async=True, timeout=PATIENCE)
    wait_until(lambda: notes.told()[:2] == ["start", "start"])
    result = client.pending(asked.correlation_id).result(PATIENCE / 2)
    assert result.error is not None
    assert result.error.code == "E_HANDOFF_TIMEOUT"
    until.touch()
    assert client.pending(hog.correlation_id).result(PATIENCE).status == "ok"


@pytest.mark.parametrize(
    ("asker", "asked", "by"),
    [
        ("ann", "dan", "a request"),
        ("bob", "cid", "a request"),
        ("north", "west", "a request"),
        ("ann", "dan", "a tool call"),
        ("bob", "cid", "a tool call"),
    ],
)
def test_open_work_of_failed_turn_is_cancelled(
    client: Client, notes: Notebook, tmp_path: Path, asker: str, asked: str, by: str
) -> None:
    """One of two things that an agent does side by side fails, and ends its Turn."""
    ended, aside = Notebook(tmp_path / "ended"), Notebook(tmp_path / "aside")
    slow = {"do": "wait", "log": notes.path, "until": str(tmp_path / "never")}
    asking = {**ask(asked, slow, options={"timeoutMs": 3_600_000}), "ended": ended.path}
    if by == "a tool call":
        asking = {"do": "call", "tool": "messenger__ask", "args": asking, "ended": ended.path}
    gate = tmp_path / "go on"
    failing = {"do": "each", "wanted": [
        {"do": "wait", "log": aside.path, "until": str(gate)}, {"do": "fail", "why": "on purpose"},
    ]}  # fmt: skip
    both = {"do": "side-by-side", "wanted": [asking, failing]}
    request = client.request(asker, both, instance_key="side", is_async=True, timeout=PATIENCE)
    wait_until(lambda: (notes.told(), aside.told()) == (["start"], ["start"]))
    gate.touch()
    error = client.pending(request.correlation_id).result(PATIENCE).error
    assert error is not None
    assert error.message == "on purpose"
    wait_until(lambda: notes.told() == ["start", "cancelled"])
    if asker != "bob":
        wait_until(lambda: ended.told() == ["ended"])
    assert client.request(asked, 1, instance_key="side", timeout=PATIENCE).response == 1


def test_request_behind_slow_request_ends_in_time(client: Client, notes: Notebook, tmp_path: Path) -> None:
    until = tmp_path / "go on"
    slow = {"do": "wait", "log": notes.path, "until": str(until)}
    first = client.request("bob", slow, instance_key="busy", is_async=True, timeout=PATIENCE)
    wait_until(lambda: notes.told() == ["start"])
    with pytest.raises(HandoffTimeoutError):
        client.request("bob", note(notes, "late"), instance_key="busy", timeout=0.3)
    third = client.request("bob", note(notes, "third"), instance_key="busy", is_async=True)
    until.touch()
    assert client.pending(first.correlation_id).result(PATIENCE).output == "waited"
    assert client.pending(third.correlation_id).result(PATIENCE).status == "ok"
    assert notes.told() == ["start", "end", "third"]


def test_late_answer_is_dropped_and_counted(client: Client, notes: Notebook, tmp_path: Path) -> None:
    def counted() -> int:
        return int(client._redis.hget("goondan:late-answers", "cid") or 0)

    before, until = counted(), tmp_path / "go on"
    refused_in_time(
        notes, lambda: client.request("cid", deaf(notes, until), instance_key="late", timeout=0.5)
    )
    assert counted() == before
    until.touch()
    wait_until(lambda: counted() == before + 1)
    assert notes.told() == ["start", "end"]
    assert 0 < client._redis.ttl("goondan:late-answers") <= client.settings.result_ttl_seconds


@pytest.mark.parametrize("ended_by", ["its limit", "a cancel"])
def test_next_event_waits_for_unstoppable_agent(
    client: Client, notes: Notebook, tmp_path: Path, ended_by: str
) -> None:
    until, instance = tmp_path / "go on", f"deaf to {ended_by}"
    limit = 2 if ended_by == "its limit" else PATIENCE
    first = client.request("cid", deaf(notes, until), instance_key=instance, is_async=True, timeout=limit)
    following = client.request("cid", note(notes, "next"), instance_key=instance, is_async=True)
    wait_until(lambda: notes.told() == ["start"])
    if ended_by == "a cancel":
        client.pending(first.correlation_id).cancel()
    assert client.pending(first.correlation_id).result(PATIENCE).status == "error"
    assert client.request("cid", 1, instance_key="another", timeout=PATIENCE).response == 1
    assert notes.told() == ["start"]
    until.touch()
    assert client.pending(following.correlation_id).result(PATIENCE).status == "ok"
    assert notes.told() == ["start", "end", "next"]


@pytest.mark.parametrize(("asker", "asked"), [("ida", "bob"), ("ivo", "ann")])
def test_run_that_lost_claim_leaves_request_to_next_run(
    client: Client, notes: Notebook, tmp_path: Path, asker: str, asked: str
) -> None:
    """A worker that was cut off comes back while another goes on with its event, and waits for the same."""
    until = tmp_path / "go on"
    slow = {"do": "wait", "log": notes.path, "until": str(until)}
    wanted = ask(asked, slow, options={"timeoutMs": 2 * PATIENCE * 1000})
    request = client.request(asker, wanted, instance_key=f"lost-{asker}", is_async=True, timeout=2 * PATIENCE)
    wait_until(lambda: notes.told() == ["start"])
    client._redis.hset(f"goondan:call:{request.id}", "token", "somebody else's")

    wait_until(lambda: client.record(request.id).attempt == 2)
    until.touch()
    result = client.pending(request.id).result(PATIENCE)

    assert (result.error, result.meta.attempt) == (None, 2)
    assert notes.told() == ["start", "end"]


def test_request_refused_for_taken_id_spares_first_request(
    client: Client, notes: Notebook, tmp_path: Path
) -> None:
    until = tmp_path / "go on"
    event = {"id": "job-of-two", "instanceKey": "shared"}
    slow = {"do": "wait", "log": notes.path, "until": str(until)}
    first = {"do": "ask", "of": "cid", "event": event | {"input": slow}}
    other = {"do": "ask", "of": "cid", "event": event | {"input": {"do": "tell"}}}
    request = client.request("ida", first, instance_key="one", is_async=True)
    wait_until(lambda: notes.told() == ["start"])
    with pytest.raises(HandoffError, match="with other content"):
        client.request("ivo", other, instance_key="two", timeout=PATIENCE)
    until.touch()
    assert client.pending(request.id).result(PATIENCE).error is None
    assert notes.told() == ["start", "end"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"timeoutMs": 0}, "timeoutMs"),
        ({"timeoutMs": -5}, "timeoutMs"),
        ({"timeoutMs": "soon"}, "timeoutMs"),
        ({"timeoutMs": True}, "timeoutMs"),
        ({"timeoutMs": 1e30}, "timeoutMs"),
        ({"async": "yes"}, "async"),
        ({"timeout": 5}, "timeoutMs"),
    ],
)
def test_options_that_make_no_sense_are_named(client: Client, options: dict[str, object], named: str) -> None:
    with pytest.raises(HandoffError, match=named) as raised:
        client.request("ann", {**ask("bob", TELL), "options": options}, timeout=PATIENCE)
    assert raised.value.code == "E_TOOL_INVALID_ARGS"


@pytest.mark.parametrize(
    "event",
    ["text", 5, None, [], {"inputs": 1}, {"input": 1, "instanceKey": 5}, {"type": 5}, {"id": 5},
     {"metadata": []}],
)  # fmt: skip
@pytest.mark.parametrize("agent", ["ann", "bob"])
def test_invalid_event_is_refused(client: Client, agent: str, event: object) -> None:
    with pytest.raises(HandoffError) as raised:
        client.request(agent, {"do": "ask", "of": "cid", "event": event}, timeout=PATIENCE)
    assert raised.value.code == "E_TOOL_INVALID_ARGS"


@pytest.mark.parametrize("fields", [
    {"timeout": 0}, {"timeout": -1}, {"timeout": float("nan")}, {"timeout": 1e30},
    {"instance_key": 5}, {"event_id": 5}, {"event_type": 5}, {"metadata": []},
    {"auth": "x"}, {"origin": "x"}, {"input": object()}, {"input": float("nan")},
    {"instance_key": "\ud800"}, {"input": "\ud800"}, {"event_id": "\ud800"}, {"metadata": {"a": object()}},
])  # fmt: skip
def test_invalid_request_from_outside_is_refused(client: Client, fields: dict[str, object]) -> None:
    with pytest.raises(ToolError) as raised:
        client.request("ann", **fields)  # type: ignore[arg-type]
    assert raised.value.code == "E_TOOL_INVALID_ARGS"


def test_request_that_failed_can_be_replayed(client: Client, tmp_path: Path) -> None:
    """The agent finds nothing to wait for the first time, and what it waits for the second time."""
    until, log = tmp_path / "go on", tmp_path / "log"
    slow = {"do": "wait", "log": str(log), "until": str(until)}
    asked = client.request("bob", slow, instance_key="replay", is_async=True, timeout=0.3)
    result = client.pending(asked.correlation_id).result(PATIENCE)
    assert result.error is not None
    assert result.error.code == "E_HANDOFF_TIMEOUT"
    until.touch()
    again = client.replay(asked.correlation_id).result(PATIENCE)
    assert (again.output, again.meta.replay_of) == ("waited", asked.correlation_id)
    assert client.request("bob", 1, instance_key="replay", timeout=PATIENCE).response == 1
