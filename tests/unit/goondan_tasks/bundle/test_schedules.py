"""Schedules in YAML: their fields, and the agent, tool and arguments that they name."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from goondan_tasks.bundle import Bundle, Finding, inspect_bundle
from goondan_tasks.bundle.schedules import schedules_of

AGENT = {"kind": "Agent", "metadata": {"name": "coder"}, "spec": {"tools": ["Tool/bash"]}}


def inspect(folder: Path, **spec: Any) -> tuple[Bundle | None, list[Finding]]:
    """Check a bundle with one Schedule; its fields are those of a valid one, unless they are given."""
    fields = {"every": "1h", "agentRef": "Agent/coder", **spec}
    given = {name: value for name, value in fields.items() if value is not None}
    schedule = {"kind": "Schedule", "metadata": {"name": "nightly"}, "spec": given}
    documents = [{"apiVersion": "goondan.ai/v1", **one} for one in (AGENT, schedule)]
    (folder / "goondan.yaml").write_text(yaml.safe_dump_all(documents), "utf-8")
    return inspect_bundle(folder, import_entries=False)


def test_valid_schedule_is_kept_with_bundles_workspace(tmp_path: Path) -> None:
    bundle, findings = inspect(
        tmp_path, every=None, cron="0 2 * * *", timeZone="Asia/Seoul", input={"n": 1}, instanceKey="{{slot}}"
    )

    assert findings == []
    assert bundle is not None
    owner, [one] = schedules_of(bundle, None, "shop")
    assert (owner, one.full_name) == ("shop", "shop/nightly")
    assert (one.cron, one.time_zone, one.input, one.catch_up) == ("0 2 * * *", "Asia/Seoul", {"n": 1}, "once")


@pytest.mark.parametrize(
    ("spec", "path", "message"),
    [
        ({"every": "2x"}, "spec.every", "is not an interval"),
        ({"every": None, "cron": "61 * * * *"}, "spec.cron", "bad minute"),
        ({"every": None, "cron": "0 0 30 2 *"}, "spec.cron", "bad day-of-month"),
        ({"every": None, "cron": "0 2 * * *", "timeZone": "Mars/Base"}, "spec.timeZone", "no time zone"),
        ({"every": None}, "spec", "exactly one of 'cron' and 'every'"),
        ({"cron": "0 2 * * *"}, "spec", "exactly one of 'cron' and 'every'"),
        ({"timeZone": "UTC"}, "spec", "counts real time"),
        ({"jitterSeconds": 3600}, "spec", "not shorter than 'every'"),
        ({"catchUp": "all", "overlap": "skip"}, "spec", "drops some"),
        ({"overlap": "maybe"}, "spec.overlap", "must be"),
        ({"input": 1, "tool": "bash__exec"}, "spec", "'input' is for a Turn"),
        ({"args": {"a": 1}}, "spec", "'args' are for a tool"),
        ({"agentRef": "Agent/codr"}, "spec.agentRef", "there is no 'Agent/codr'"),
        ({"tool": "bash__exek"}, "spec.tool", "declares no tool 'bash__exek'"),
        ({"tool": "bash__exec", "args": {"command": 3}}, "spec.args", "args.command"),
        ({"tool": "bash__exec"}, "spec.args", "command"),
        ({"agent": "coder"}, "spec.agent", "unknown field"),
    ],
)
def test_fault_of_schedule_is_reported_at_its_place(
    tmp_path: Path, spec: dict[str, Any], path: str, message: str
) -> None:
    bundle, findings = inspect(tmp_path, **spec)

    assert bundle is None
    assert [(one.path, one.resource) for one in findings] == [(path, "Schedule/nightly")]
    assert message in findings[0].message


def test_tool_that_extension_may_register_is_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AGENT["spec"], "extensions", ["Extension/logging"])  # type: ignore[arg-type]

    bundle, findings = inspect(tmp_path, tool="search__find")

    assert [(one.path, one.level) for one in findings] == [("spec.tool", "warning")]
    assert bundle is not None
