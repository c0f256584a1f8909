"""Which calls do not end with their run."""

from dataclasses import replace
from pathlib import Path

import pytest

from goondan_tasks.bundle import BoundTool, load_bundle
from goondan_tasks.bundle.binding import bound_exports
from goondan_tasks.bundle.resource import API_VERSION
from goondan_tasks.bundle.resources import ToolResource
from goondan_tasks.contract.calls import Run, new_call
from goondan_tasks.contract.messages import epoch_milliseconds
from goondan_tasks.contract.names import READ_OUTPUT_TOOL
from goondan_tasks.contract.output import Pending
from workers.results import Suspension
from workers.testing import run_tool
from workers.tools.system_tools import system_tools

PENDING_BUNDLE = Path(__file__).parents[2] / "bundles" / "pending"
NOW = 1_790_000_000_000.0
ASKS_FOR_ALL = Suspension(("*",), 60)
ASKS_FOR_NONE = Suspension((), 60)


def a_run(**fields: object) -> Run:
    return Run("id-1", new_call("coder", "disk__wipe", {}, fields), "w1", 1, NOW, lambda: NOW)


def a_tool(**fields: object) -> BoundTool:
    spec = {"entry": "x.py", "exports": [{"name": "wipe", **fields}]}
    wire = {"apiVersion": API_VERSION, "kind": "Tool", "metadata": {"name": "disk"}, "spec": spec}
    [bound] = bound_exports(ToolResource.model_validate(wire), Path("/"))
    return bound


@pytest.mark.parametrize("glob", ["*", "disk__*", "*__wipe", "disk__wipe", "disk__w[hi]pe"])
def test_glob_of_policy_asks_for_approval(glob: str) -> None:
    held = Suspension(("other__*", glob), 60).hold(a_run(), a_tool())
    assert held is not None
    assert (held.handle, held.is_approval) == ("id-1", True)


def test_export_asks_for_approval_until_approved() -> None:
    tool = a_tool(requiresApproval=True)
    assert ASKS_FOR_NONE.hold(a_run(), tool) is not None
    assert ASKS_FOR_NONE.hold(replace(a_run(), approved_by=""), tool) is None
    assert ASKS_FOR_NONE.hold(a_run(), a_tool()) is None


def test_systems_own_tools_need_no_approval() -> None:
    assert ASKS_FOR_ALL.hold(a_run(), system_tools(1_000)[READ_OUTPUT_TOOL].bound) is None


def test_call_expires_by_tools_or_operators_time() -> None:
    waits = [Pending("x"), Pending("x", ttl_seconds=5)]
    results = [ASKS_FOR_NONE.result(a_run(), one, NOW) for one in waits]
    assert [epoch_milliseconds(one.meta.expires_at or "") - NOW for one in results] == [60_000, 5_000]


def test_deadline_ends_wait_for_approval_and_no_other() -> None:
    run = a_run(deadline="2026-09-21T14:13:21.000Z")
    assert epoch_milliseconds(run.call.deadline or "") == NOW + 1_000
    held = ASKS_FOR_ALL.result(run, Pending("x", is_approval=True), None)
    begun = ASKS_FOR_ALL.result(run, Pending("x"), NOW)
    assert held.meta.expires_at == "2026-09-21T14:13:21.000Z"
    assert begun.meta.expires_at == "2026-09-21T14:14:20.000Z"


def test_tool_author_sees_pending_without_needing_approval(tmp_path: Path) -> None:
    bundle = load_bundle(PENDING_BUNDLE)
    begun = run_tool(bundle, "builder", "jobs__begin", {"handle": "h"}, state_root=tmp_path)
    wiped = run_tool(bundle, "builder", "guarded__wipe", {"disk": "sda"}, state_root=tmp_path)
    nowhere = run_tool(bundle, "builder", "jobs__begin", {"callback": True}, state_root=tmp_path)
    assert (begun.status, begun.handle) == ("pending", "h")
    assert (wiped.status, wiped.output) == ("ok", {"wiped": "sda"})
    assert nowhere.error is not None
    assert "GOONDAN_PUBLIC_URL" in (nowhere.error.suggestion or "")
