"""Calls that wait for a person's approval: none of them runs before somebody has approved it."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from goondan_tasks.client import Client, PendingCall
from goondan_tasks.contract.errors import (
    CallClosedError,
    CallNotFoundError,
    CallNotPendingError,
    ToolInputValidationError,
)
from goondan_tasks.contract.messages import iso_time
from goondan_tasks.testing import LocalStack

PENDING_BUNDLE = Path(__file__).parent.parent / "bundles" / "pending"
PATIENCE = 60.0


@pytest.fixture(scope="module")
def pending_stack() -> Iterator[LocalStack]:
    with LocalStack(PENDING_BUNDLE) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(pending_stack: LocalStack) -> Client:
    return pending_stack.client


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def held(client: Client, log: Path, instance: str = "default") -> PendingCall:
    """Submit a call and wait until it waits for an approval."""
    call = client.submit("builder", "guarded__wipe", {"disk": "sda", "log": str(log)}, instance_key=instance)
    assert call.result(PATIENCE).meta.awaits == "approval"
    return call


def waiting(client: Client) -> list[str]:
    return [record.id for record in client.approvals()]


def test_held_call_runs_once_after_approval(client: Client, log: Path) -> None:
    call = held(client, log, "approved")
    interim = call.result(PATIENCE)
    assert (interim.status, interim.handle, interim.meta.started_at) == ("pending", call.id, None)
    assert not log.exists()
    [record] = [one for one in client.approvals("builder") if one.id == call.id]
    assert (record.call.args["disk"], record.awaits, record.attempt) == ("sda", "approval", 0)
    client.approve(call.id, by="ann")
    final = call.result(PATIENCE, wait_pending=True)
    assert (final.status, final.output, final.meta.attempt) == ("ok", {"wiped": "sda"}, 1)
    assert log.read_text("utf-8") == "sda\n"
    assert client.record(call.id).approved_by == "ann"
    assert call.id not in waiting(client)
    event = client.receive("builder", "approved", PATIENCE)
    assert event is not None
    client.reply(event)
    told = event.event.input
    assert (told["id"], told["handle"], told["output"]) == (call.id, call.id, {"wiped": "sda"})


def test_second_decision_is_refused(client: Client, log: Path) -> None:
    denied, approved = held(client, log), held(client, log)
    client.deny(denied.id)
    client.approve(approved.id)
    approved.result(PATIENCE, wait_pending=True)
    for call in (denied, approved):
        with pytest.raises(CallClosedError):
            client.approve(call.id)
        with pytest.raises(CallClosedError):
            client.deny(call.id)
    assert log.read_text("utf-8") == "sda\n"


def test_call_that_waits_for_approval_cannot_be_completed(client: Client, log: Path) -> None:
    call = held(client, log)
    with pytest.raises(CallNotPendingError, match="waits for an approval"):
        client.resolve(call.id, "forged")
    with pytest.raises(CallNotPendingError):
        client.fail(call.id, "forged")
    for name in ("x" * 201, "\ud800", "two\nlines", None, 7):
        with pytest.raises(ToolInputValidationError, match="by must be a name"):
            client.approve(call.id, by=cast(str, name))
    call.cancel()
    with pytest.raises(CallClosedError):
        client.approve(call.id)
    assert not log.exists()


def test_call_without_required_approval_cannot_be_approved(client: Client) -> None:
    call = client.submit("builder", "jobs__begin", {})
    call.result(PATIENCE)
    with pytest.raises(CallNotPendingError, match="needs no approval"):
        client.approve(call.id)
    with pytest.raises(CallNotPendingError):
        client.deny(call.id)
    with pytest.raises(CallNotFoundError):
        client.approve("nobody")
    client.resolve(call.id)


def test_policy_of_swarm_asks_for_approval_too(client: Client) -> None:
    asked = client.submit("builder", "vault__look", {})
    assert asked.result(PATIENCE).meta.awaits == "approval"
    assert client.call("builder", "guarded__look", {}, timeout=PATIENCE).output == "gold"
    client.approve(asked.id)
    assert asked.result(PATIENCE, wait_pending=True).output == "gold"


def test_wrong_arguments_are_refused_before_approval_is_asked(client: Client) -> None:
    result = client.call("builder", "guarded__wipe", {"disk": 7}, timeout=PATIENCE)
    assert result.error is not None
    assert result.error.code == "E_TOOL_INVALID_ARGS"


def test_call_unapproved_by_deadline_is_not_run(client: Client, log: Path) -> None:
    deadline = iso_time(time.time() * 1000 + 6_000)  # it is held by then
    args = {"disk": "sda", "log": str(log)}
    [call] = client.submit_many(
        [{"agentName": "builder", "toolName": "guarded__wipe", "args": args, "deadline": deadline}]
    )
    assert call.result(PATIENCE).meta.expires_at == deadline
    final = call.result(PATIENCE, wait_pending=True)
    assert final.error is not None
    assert (final.error.code, final.meta.attempt) == ("E_TOOL_EXPIRED", 0)
    assert final.error.message == "The call was not approved in time; it was not run."
    with pytest.raises(CallClosedError):
        client.approve(call.id)
    assert not log.exists()


def test_replayed_denied_call_asks_for_approval_again(client: Client, log: Path) -> None:
    call = held(client, log)
    client.deny(call.id)
    again = client.replay(call.id)
    assert again.result(PATIENCE).meta.awaits == "approval"
    assert again.id in waiting(client)
    client.approve(again.id)
    assert again.result(PATIENCE, wait_pending=True).status == "ok"


def test_approvals_survive_restart_of_all_workers(pending_stack: LocalStack, log: Path) -> None:
    call = held(pending_stack.client, log)
    for worker in pending_stack.workers:
        pending_stack.stop_worker(worker)
    assert call.id in waiting(pending_stack.client)
    pending_stack.client.approve(call.id)
    assert call.status() == "queued"
    pending_stack.start_worker()
    assert call.result(PATIENCE, wait_pending=True).status == "ok"
    assert log.read_text("utf-8") == "sda\n"
