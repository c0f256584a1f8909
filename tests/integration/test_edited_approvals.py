"""Calls that a person approves with other arguments: these run, whatever dies, and the agent is told."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from redis import Redis

from broker_config.serializer import encode
from goondan_tasks.client import Client, PendingCall
from goondan_tasks.contract.calls import new_call, queue_element
from goondan_tasks.contract.errors import CallClosedError, PayloadTooLargeError, ToolInputValidationError
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.contract.model_messages import tool_message
from goondan_tasks.testing import LocalStack
from tests.waiting import wait_until

PENDING_BUNDLE = Path(__file__).parent.parent / "bundles" / "pending"
PATIENCE = 60.0
ENVIRONMENT = {"GOONDAN_LEASE_SECONDS": "3", "GOONDAN_MAX_ARGS_BYTES": "20000"}


@pytest.fixture(scope="module")
def pending_stack() -> Iterator[LocalStack]:
    with LocalStack(PENDING_BUNDLE, agents=["builder"], environment=ENVIRONMENT) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(pending_stack: LocalStack) -> Client:
    return pending_stack.client


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def held(client: Client, log: Path, tool: str = "guarded__wipe", **fields: Any) -> PendingCall:
    """Submit a call for the disk sda, and wait until it waits for an approval."""
    args = {"disk": "sda", "log": str(log), "until": str(log.with_name("until"))}
    call = client.submit("builder", tool, args, **fields)
    assert call.result(PATIENCE).meta.awaits == "approval"
    return call


def other(call: PendingCall, client: Client, disk: str = "sdb") -> dict[str, Any]:
    return {**client.record(call.id).call.args, "disk": disk}


def test_edited_arguments_run_and_original_stays_visible(client: Client, log: Path) -> None:
    call = held(client, log, instance_key="edited")
    asked, edited = client.record(call.id).call.args, other(call, client)
    client.approve(call.id, "ann", edited)
    final = call.result(PATIENCE, wait_pending=True)

    assert (final.output, log.read_text("utf-8")) == ({"wiped": "sdb"}, "sdb\n")
    assert final.meta.edited is not None
    assert (final.meta.edited.by, final.meta.edited.args) == ("ann", edited)
    told = tool_message("c", "guarded__wipe", final)["output"]
    assert (told["output"], told["edited"]["args"]["disk"]) == ({"wiped": "sdb"}, "sdb")
    assert "not of the arguments that were asked for" in told["edited"]["note"]
    record = client.record(call.id)
    assert record.call.edited is not None
    assert (record.call.args, record.call.edited.asked, record.call.edited.by) == (edited, asked, "ann")
    story = client.describe(call.id)
    assert story.asked_args is not None
    assert ('"sdb"' in story.args.text, '"sda"' in story.asked_args.text) == (True, True)
    [node] = client.trace(call.id).nodes[:1]
    assert (node.approved_by, node.is_edited) == ("ann", True)
    assert [(one.act, one.by) for one in client.audit(target=call.id)] == [("approve.edited", "ann")]
    event = client.receive("builder", "edited", PATIENCE)
    assert event is not None
    client.reply(event)
    assert (event.event.input["edited"]["args"], event.event.input["edited"]["by"]) == (edited, "ann")


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"disk": 7}, ToolInputValidationError, "args.disk"),
        ({"disk": "x" * 30_000}, PayloadTooLargeError, "at most 20000"),
        ({"disk": float("nan")}, ToolInputValidationError, "JSON"),
        ({"disk": {1, 2}}, ToolInputValidationError, "JSON"),
    ],
)
def test_wrong_edit_is_refused_and_call_waits(
    client: Client, log: Path, change: dict[str, Any], error: type[Exception], said: str
) -> None:
    call = held(client, log)
    with pytest.raises(error, match=said):
        client.approve(call.id, "ann", {**other(call, client), **change})
    for missing in ({}, {"log": str(log)}):
        with pytest.raises(ToolInputValidationError, match="'disk' is required"):
            client.approve(call.id, "ann", missing)
    with pytest.raises(ToolInputValidationError, match="must be an object"):
        client.approve(call.id, "ann", cast(Any, [1]))
    record = client.record(call.id)
    assert (record.awaits, record.call.edited, record.call.args["disk"]) == ("approval", None, "sda")
    client.approve(call.id, "ann", dict(record.call.args))
    final = call.result(PATIENCE, wait_pending=True)
    assert (final.output, final.meta.edited) == ({"wiped": "sda"}, None)


def test_edit_applies_to_call_that_began_waiting_meanwhile(
    client: Client, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = held(client, log)
    before = replace(client.record(call.id), status="queued", awaits=None)
    edited = other(call, client)
    with monkeypatch.context() as patch:
        patch.setattr(client, "record", lambda _: before)
        client.approve(call.id, "ann", edited)
    final = call.result(PATIENCE, wait_pending=True)
    assert (final.output, final.meta.edited is not None) == ({"wiped": "sdb"}, True)
    with pytest.raises(CallClosedError):
        client.approve(call.id, "ann", {"disk": 7})


def test_nobody_but_approver_says_that_arguments_were_changed(client: Client, log: Path) -> None:
    forged = {"by": "boss", "at": "2026-02-01T10:00:00.000Z", "asked": {"disk": "sdz"}}
    args = {"disk": "sda", "log": str(log)}
    as_dict = {"agentName": "builder", "toolName": "guarded__wipe", "args": args, "edited": forged}
    as_record = ToolCall.from_wire(
        {**new_call("builder", "guarded__wipe", args, {}).to_wire(), "edited": forged}
    )
    for call in client.submit_many([as_dict, as_record]):
        assert call.result(PATIENCE).meta.awaits == "approval"
        client.approve(call.id, "ann")
        assert call.result(PATIENCE, wait_pending=True).meta.edited is None
        assert client.record(call.id).call.edited is None


def test_filtered_calls_are_decided_except_those_decided_meanwhile(client: Client, log: Path) -> None:
    calls = [held(client, log, instance_key="many") for _ in range(3)]
    ids = [one.id for one in client.approvals("builder", tool="guarded__w*", instance="many")]
    assert ids == [call.id for call in calls]
    assert client.approvals("builder", tool="vault__*", instance="many") == []
    client.deny(ids[0])
    assert client.approve_many([*ids[:2], "unknown"], "ann") == ids[1:2]
    assert client.deny_many(ids, "enough", "ann") == ids[2:]
    assert {one.target for one in client.audit(by="ann", act="approve")} >= {ids[1]}
    codes = [(call.result(PATIENCE, wait_pending=True).error or None) for call in calls]
    assert [None if one is None else one.code for one in codes] == [
        "E_APPROVAL_DENIED",
        None,
        "E_APPROVAL_DENIED",
    ]


def test_approved_call_of_killed_worker_reruns_with_edited_arguments(
    pending_stack: LocalStack, client: Client, log: Path
) -> None:
    call = held(client, log, "guarded__mount", instance_key="killed")
    client.approve(call.id, "ann", other(call, client))
    wait_until(log.exists, PATIENCE)
    [worker] = pending_stack.workers
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(PATIENCE)
    pending_stack.stop_worker(worker)
    pending_stack.start_worker(["builder"])
    wait_until(lambda: log.read_text("utf-8") == "sdb\nsdb\n", PATIENCE)
    log.with_name("until").touch()
    final = call.result(PATIENCE, wait_pending=True)
    assert (final.output, final.meta.attempt) == ({"mounted": "sdb"}, 2)
    assert final.meta.edited is not None


def test_key_of_call_is_that_of_edited_arguments(client: Client, log: Path) -> None:
    first = held(client, log, "guarded__mount-once", instance_key="first")
    as_asked, as_edited = (held(client, log, "guarded__mount-once", instance_key=name) for name in "ab")
    client.approve(first.id, "ann", other(first, client))
    log.with_name("until").touch()
    assert first.result(PATIENCE, wait_pending=True).output == {"mounted": "sdb"}
    client.approve(as_asked.id, "ann")
    assert as_asked.result(PATIENCE, wait_pending=True).output == {"mounted": "sda"}
    client.approve(as_edited.id, "ann", other(as_edited, client))
    assert as_edited.result(PATIENCE, wait_pending=True).output == {"mounted": "sdb"}
    assert log.read_text("utf-8") == "sdb\nsda\n"


@pytest.mark.parametrize("kind", ["earlier version", "message as asked for"])
def test_edited_arguments_run_despite_older_worker_or_old_message(
    pending_stack: LocalStack, client: Client, log: Path, kind: str
) -> None:
    call = held(client, log)
    asked = client.record(call.id).call
    [worker] = pending_stack.workers
    pending_stack.stop_worker(worker)
    client.approve(call.id, "ann", other(call, client))
    edited, key = client.record(call.id).call, f"goondan:call:{call.id}"
    as_read = edited.model_copy(update={"edited": None}) if kind == "earlier version" else asked
    with Redis.from_url(pending_stack.redis_url) as redis:
        redis.delete("agent.builder")
        redis.lpush("agent.builder", queue_element(call.id, as_read, encode(as_read.to_wire())))
        if kind == "earlier version":  # a field that it does not know is no field
            redis.hset(key, "call", encode(as_read.to_wire()))
    pending_stack.start_worker(["builder"])
    final = call.result(PATIENCE, wait_pending=True)
    assert (final.output, final.meta.edited is None) == ({"wiped": "sdb"}, kind == "earlier version")
    assert log.read_text("utf-8") == "sdb\n"
