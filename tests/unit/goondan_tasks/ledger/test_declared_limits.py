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


def test_export_without_limits_has_no_limits() -> None:
    assert call_limits("free__work") == []
    assert Limits.of(TOOLS["free__work"]).is_empty


def test_tool_limit_is_shared_export_limit_separate() -> None:
    assert call_limits("desk__work") == call_limits("desk__rest") == ["seats 2 0 - concurrency:desk"]
    assert call_limits("desk__solo") == ["seats 1 0 - concurrency:desk__solo"]


def test_call_awaits_instance_limit_before_shared_limit() -> None:
    assert call_limits("desk__in-turn", a_call(instance_key="a b\n")) == [
        "seats 1 0 - serial:desk__in-turn@a%20b%0A",
        "seats 100 0 - concurrency:desk__in-turn",
    ]


def test_rate_is_count_in_period() -> None:
    assert call_limits("desk__paced")[-1] == "rate 5 1000 - rate:desk__paced"
    assert call_limits("desk__hourly")[-1] == "rate 1 3600000 - rate:desk__hourly"


def test_key_comes_from_declared_arguments_only() -> None:
    first, same, other = (
        call_limits("once__order", a_call({"order": order, "note": note}))
        for order, note in (("1", "x"), ("1", "y"), ("2", "x"))
    )
    assert first == same != other
    assert first[0].startswith("key 1 0 - key:")


def test_replay_has_key_of_call_that_it_replays() -> None:
    call = a_call({"order": "1"})
    [first], [replay] = (
        call_limits("once__order", one) for one in (call, call.model_copy(update={"replay_of": "old"}))
    )
    assert replay == first.replace("key 1 0", "key 1 1")


def test_key_of_caller_has_digest_of_arguments() -> None:
    [first, same, other] = (
        call_limits("free__work", a_call({"n": n, "m": 0}, idempotency_key="k"))[0].split() for n in (1, 1, 2)
    )
    assert first == same
    assert (first[4], first[3]) != (other[4], other[3])
    assert first[4] == other[4]


@pytest.mark.parametrize("key", ["", None])
def test_empty_key_is_none(key: str | None) -> None:
    assert call_limits("free__work", a_call(idempotency_key=key)) == []


def test_non_object_arguments_have_no_declared_key() -> None:
    assert call_limits("once__order", a_call(["no", "object"])) == []


def test_run_timeout_comes_from_call_or_export() -> None:
    assert Limits(timeout_seconds=10).run_seconds(a_call(timeout_seconds=5)) == 10
    assert Limits().run_seconds(a_call(timeout_seconds=5)) == 5
