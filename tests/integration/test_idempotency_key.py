"""Calls with one idempotencyKey: one runs, and the others have its result as their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.testing import LocalStack
from tests.celery_apps import plain_celery
from tests.integration.diary import BUNDLE, Diary
from tests.integration.results import code_of
from tests.waiting import wait_until

PATIENCE = 60


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path)


@pytest.fixture(scope="module")
def shop() -> Iterator[LocalStack]:
    with LocalStack(BUNDLE, workers=2, environment={"GOONDAN_LEASE_SECONDS": "2"}) as stack:
        yield stack


def test_call_sharing_key_gets_output_but_own_identity(shop: LocalStack, diary: Diary) -> None:
    wire = [
        diary.call("once__work", "same", idempotencyKey="k-1", toolCallId=f"call_{number}")
        for number in range(3)
    ]
    first = shop.client.submit_many(wire[:1])[0].result(PATIENCE)
    later = [call.result(PATIENCE) for call in shop.client.submit_many(wire[1:])]
    assert [result.output for result in later] == [first.output] * 2
    assert [result.tool_call_id for result in later] == ["call_1", "call_2"]
    assert len({result.meta.id for result in (first, *later)}) == 3
    assert diary.started() == ["same"]


def test_calls_with_one_key_await_first_without_slot(shop: LocalStack, diary: Diary) -> None:
    wire = [diary.call("once__work", "same", idempotencyKey="k-2", gate=str(diary.gate))] * 40
    calls = shop.client.submit_many(wire)
    free = shop.client.submit_many([diary.call("free__work", f"f{number}") for number in range(20)])
    assert {call.result(PATIENCE).status for call in free} == {"ok"}
    diary.gate.touch()
    assert {str(call.result(PATIENCE).output) for call in calls} == {"{'name': 'same'}"}
    assert diary.started().count("same") == 1


def test_other_arguments_under_callers_key_are_conflict(shop: LocalStack, diary: Diary) -> None:
    first, other = (
        shop.client.submit_many([diary.call("once__work", name, idempotencyKey="k-3")])[0].result(PATIENCE)
        for name in ("one", "two")
    )
    assert first.status == "ok"
    assert other.error is not None
    assert (other.error.code, other.error.name) == ("E_TOOL_CALL_CONFLICT", "ToolCallConflictError")
    assert first.meta.id in other.error.message
    assert diary.started() == ["one"]


def test_export_names_arguments_that_make_calls_same(shop: LocalStack, diary: Diary) -> None:
    wire = [
        diary.call("once__order", name, order=order) for name, order in (("a", "1"), ("b", "1"), ("c", "2"))
    ]
    results = [shop.client.submit_many([call])[0].result(PATIENCE) for call in wire]
    assert [result.output for result in results] == [{"name": "a"}, {"name": "a"}, {"name": "c"}]
    assert diary.started() == ["a", "c"]


def test_callers_key_goes_before_that_of_export(shop: LocalStack, diary: Diary) -> None:
    wire = [diary.call("once__order", name, order="9", idempotencyKey=f"own-{name}") for name in "ab"]
    results = [call.result(PATIENCE) for call in shop.client.submit_many(wire)]
    assert [result.output for result in results] == [{"name": "a"}, {"name": "b"}]


def test_same_key_for_another_tool_is_another_key(shop: LocalStack, diary: Diary) -> None:
    wire = [
        diary.call(tool, "same", order="5", idempotencyKey="k-4") for tool in ("once__work", "once__order")
    ]
    assert {call.result(PATIENCE).status for call in shop.client.submit_many(wire)} == {"ok"}
    assert diary.started() == ["same", "same"]


def test_after_error_next_call_runs_for_itself(shop: LocalStack, diary: Diary) -> None:
    wire = diary.call("once__order", "fails", order="7", code="E_SHOP_CLOSED", gate=str(diary.gate))
    calls = shop.client.submit_many([wire, wire])
    wait_until(lambda: diary.started() == ["fails"])
    diary.gate.touch()
    assert [code_of(call.result(PATIENCE)) for call in calls] == ["E_SHOP_CLOSED"] * 2
    assert diary.started() == ["fails", "fails"]


def test_unknown_outcome_covers_all_calls_with_key(diary: Diary) -> None:
    environment = {"GOONDAN_LEASE_SECONDS": "2"}
    with LocalStack(BUNDLE, agents=["clerk"], environment=environment) as stack:
        wire = diary.call("once__work", "same", idempotencyKey="k-5", gate=str(diary.gate))
        first, waiting = stack.client.submit_many([wire, wire])
        wait_until(lambda: diary.started() == ["same"])
        [worker] = stack.workers
        worker.kill()
        worker.wait(PATIENCE)
        stack.start_worker()
        codes = [code_of(call.result(PATIENCE)) for call in (first, waiting)]
    assert codes == ["E_TOOL_OUTCOME_UNKNOWN"] * 2
    assert diary.started() == ["same"]


def test_keys_work_for_plain_celery_producers(shop: LocalStack, diary: Diary) -> None:
    call = diary.call("once__work", "plain", idempotencyKey="k-6")
    with plain_celery(shop.redis_url) as app:
        sent = [
            app.send_task("goondan.tool_call", kwargs={"call": call}, queue="agent.clerk") for _ in range(5)
        ]
        results = [result.get(timeout=PATIENCE) for result in sent]
    assert [result["output"] for result in results] == [{"name": "plain"}] * 5
    assert diary.started() == ["plain"]
