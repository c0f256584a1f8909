"""Which limits a call has, from what its Tool and export declare."""

from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.bundle import load_bundle
from goondan_tasks.bundle.binding import BoundTool
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.ledger.limiter import Limits

BUNDLE = Path(__file__).parents[3] / "bundles/limits"
TOOLS: dict[str, BoundTool] = dict(load_bundle(BUNDLE).bound_tools("clerk"))


def a_call(args: Any = None, **fields: Any) -> ToolCall:
    return new_call("clerk", "any__tool", args or {}, fields)


def call_limits(tool: str, call: ToolCall | None = None) -> list[str]:
    return Limits.of(TOOLS[tool]).for_call(call or a_call()).splitlines()


def test_an_export_without_limits_has_no_limits() -> None:
    assert call_limits("free__work") == []
    assert Limits.of(TOOLS["free__work"]).is_empty


def test_a_limit_of_the_tool_is_shared_by_its_exports_and_one_of_an_export_is_its_own() -> None:
    assert call_limits("desk__work") == call_limits("desk__rest") == ["seats 2 0 - concurrency:desk"]
    assert call_limits("desk__solo") == ["seats 1 0 - concurrency:desk__solo"]


def test_a_call_waits_for_its_instance_before_it_waits_for_all() -> None:
    assert call_limits("desk__in-turn", a_call(instance_key="a b\n")) == [
        "seats 1 0 - serial:desk__in-turn@a%20b%0A",
        "seats 100 0 - concurrency:desk__in-turn",
    ]


def test_a_rate_is_a_count_in_a_period() -> None:
    assert call_limits("desk__paced")[-1] == "rate 5 1000 - rate:desk__paced"
    assert call_limits("desk__hourly")[-1] == "rate 1 3600000 - rate:desk__hourly"


def test_declared_arguments_make_the_key_and_the_others_do_not_count() -> None:
    first, same, other = (
        call_limits("once__order", a_call({"order": order, "note": note}))
        for order, note in (("1", "x"), ("1", "y"), ("2", "x"))
    )
    assert first == same != other
    assert first[0].startswith("key 1 0 - key:")


def test_a_replay_has_the_key_of_the_call_that_it_replays() -> None:
    call = a_call({"order": "1"})
    [first], [replay] = (
        call_limits("once__order", one) for one in (call, call.model_copy(update={"replay_of": "old"}))
    )
    assert replay == first.replace("key 1 0", "key 1 1")


def test_a_key_of_the_caller_has_the_digest_of_the_arguments() -> None:
    [first, same, other] = (
        call_limits("free__work", a_call({"n": n, "m": 0}, idempotency_key="k"))[0].split() for n in (1, 1, 2)
    )
    assert first == same
    assert (first[4], first[3]) != (other[4], other[3])
    assert first[4] == other[4]


@pytest.mark.parametrize("key", ["", None])
def test_an_empty_key_is_none(key: str | None) -> None:
    assert call_limits("free__work", a_call(idempotency_key=key)) == []


def test_arguments_that_are_no_object_have_no_declared_key() -> None:
    assert call_limits("once__order", a_call(["no", "object"])) == []


def test_a_run_may_take_as_long_as_the_call_or_its_export_says() -> None:
    assert Limits(timeout_seconds=10).run_seconds(a_call(timeout_seconds=5)) == 10
    assert Limits().run_seconds(a_call(timeout_seconds=5)) == 5
