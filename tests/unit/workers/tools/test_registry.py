"""What a worker can run: the bundle's tools, and those of extensions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fakeredis
import pytest
from structlog.testing import capture_logs

from broker_config.settings import Settings
from goondan_tasks.bundle import load_bundle
from goondan_tasks.contract.calls import new_call
from goondan_tasks.ledger.ledger import Ledger
from tests.unit.workers.revisions.lone_revisions import revisions_with
from workers.delivery.delivery import Delivery
from workers.delivery.limiter import CallLimiter
from workers.javascript.tools import HostedTools, Hosts
from workers.processes.isolation import Children, Isolation
from workers.tools.dynamic_tools import DynamicTool, dynamic_tool
from workers.tools.registry import Registry
from workers.turns.catalog_guard import CatalogGuard

LIMITS = Path(__file__).parents[3] / "bundles" / "limits"
STEPS_BUNDLE = LIMITS.with_name("steps")

SLOW = """
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: clerk }
spec: { tools: [Tool/slow] }
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: slow }
spec: { entry: ./slow.py, exports: [{ name: wait }] }
"""
UNUSED: Any = None


def registry(*, is_open: bool = False) -> Registry:
    return Registry(
        load_bundle(LIMITS),
        Isolation(Children(), ""),
        HostedTools(Hosts(), STEPS_BUNDLE, ""),
        is_open=is_open,
    )


def a_dynamic_tool(
    name: str, policy: Mapping[str, Any], *, is_lasting: bool, turn_id: str = "t"
) -> DynamicTool:
    item = {"name": name, "description": "", "parameters": {"type": "object"}}
    return dynamic_tool(
        item,
        lambda ctx, input: name,
        policy,
        extension="finder",
        entry_path=LIMITS / "finder.py",
        turn=None if is_lasting else ("i", turn_id),
    )


@pytest.mark.requirement("registry.all-tools")
def test_every_bundle_tool_export_has_its_handler() -> None:
    bundle = load_bundle(STEPS_BUNDLE)
    tools = Registry(bundle, Isolation(Children(), ""), HostedTools(Hosts(), STEPS_BUNDLE, ""), is_open=True)
    named = {f"{tool.name}__{one.name}" for tool in bundle.tools.values() for one in tool.spec.exports}

    assert named == {"stove__cook", "stove__burn", "stove__context", "cellar__cook", "cellar__context"}
    assert set(tools.all_known("librarian")) >= named
    handlers: dict[str, Any] = {name: tools.tool("librarian", name).handler for name in named}
    assert {name: handler.__name__ for name, handler in handlers.items()} == {
        name: name.partition("__")[2] for name in named
    }


def early_terms(tools: Registry) -> str:
    """Return by which terms calls of the agent are claimed before anybody has looked at them."""
    with fakeredis.FakeRedis() as redis:
        ledger = Ledger(redis, Settings())
        limiter = CallLimiter(ledger, UNUSED, tools_of=UNUSED)
        delivery = Delivery(
            ledger,
            UNUSED,
            UNUSED,
            limiter=limiter,
            revisions=revisions_with(tools),
            leases=UNUSED,
            watchdog=UNUSED,
            cancels=UNUSED,
            result_writer=UNUSED,
            spans=UNUSED,
        )
        return delivery.claim_on_reserve("w1", ["clerk"]).terms["agent.clerk"]


def test_claims_know_terms_of_step_registered_tool() -> None:
    tools = registry()
    policy = {"idempotent": True, "maxAttempts": 7}
    for turn_id in ("t", "another"):
        tools.dynamic.add("clerk", a_dynamic_tool("found__ask", policy, is_lasting=False, turn_id=turn_id))
    assert '"found__ask":["1",7,0]' in early_terms(tools)


@pytest.mark.parametrize("is_lasting", [True, False])
def test_call_is_examined_before_claim_if_namesake_tools_differ(
    is_lasting: bool,
) -> None:
    tools = registry()
    once, twice = ({"idempotent": is_twice} for is_twice in (False, True))
    tools.dynamic.add("clerk", a_dynamic_tool("found__ask", twice, is_lasting=is_lasting, turn_id="another"))
    tools.dynamic.add("clerk", a_dynamic_tool("found__ask", once, is_lasting=False))
    assert '"found__ask":false' in early_terms(tools)


def test_dynamic_tool_fully_replaces_bundle_tool() -> None:
    tools = registry(is_open=True)
    assert tools.tool("porter", "once__work").bound is tools.known("porter", "once__work")
    assert tools.limits("porter", "once__order")
    for name in ("once__work", "once__order"):
        tools.dynamic.add("porter", a_dynamic_tool(name, {}, is_lasting=True))
        assert tools.tool("porter", name).bound is tools.known("porter", name)
        assert tools.tool("porter", name) is tools.dynamic.of("porter")[name].registered
        assert tools.limits("porter", name) is None


def test_open_registry_lists_no_tools_for_call(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = registry(is_open=True)
    for name, is_lasting in {"found__always": True, "found__once": False}.items():
        tools.dynamic.add("porter", a_dynamic_tool(name, {}, is_lasting=is_lasting))
    offered = {item.name for item in tools.items("porter")}
    monkeypatch.setattr(Registry, "items", None)
    asked = ["desk__work", "once__work", "found__always", "found__once"]
    with capture_logs() as logs:
        for name in asked:
            call = new_call("porter", name, {}, {"instance_key": "i", "turn_id": "t"})
            CatalogGuard(tools).admit(call, UNUSED)
    assert [log["tool"] for log in logs] == ["once__work", "found__once"]
    assert offered.isdisjoint(log["tool"] for log in logs)


def test_unlisted_tool_keeps_terms_and_limits_in_step() -> None:
    tools = registry()
    assert "once__order" not in (tools.catalog("porter") or {})
    assert tools.bound("porter", "once__order") is None
    assert tools.known("porter", "once__order") is tools.bundle.all_tools()["once__order"]
    assert tools.limits("porter", "once__order")
    assert tools.limits("porter", "once__order", in_step=False) is None
    assert registry(is_open=True).limits("porter", "once__order", in_step=False)
    assert tools.known("nobody", "once__order") is None
