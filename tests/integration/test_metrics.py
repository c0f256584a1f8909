"""What `goondan metrics` serves of calls that real workers have run, failed and lost."""

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, serving
from tests.waiting import wait_until

LOG_LINES_BUNDLE = Path(__file__).parent.parent / "bundles" / "log-lines"
MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
PATIENCE = 60
ENDINGS = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"], "gauge": [""]}

Samples = dict[tuple[str, str | None, str | None], float]


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    with LocalStack(LOG_LINES_BUNDLE, concurrency=4, environment={"GOONDAN_LEASE_SECONDS": "2"}) as stack:
        yield stack


def exposed(url: str) -> list[Metric]:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310
        return list(text_string_to_metric_families(answer.read().decode()))


def scraped(url: str) -> Samples:
    """Return the sum of each metric over all workers, by name, tool and code."""
    sums: Samples = {}
    for family in exposed(url):
        for sample in family.samples:
            key = (sample.name, sample.labels.get("tool"), sample.labels.get("code"))
            sums[key] = sums.get(key, 0) + sample.value
    return sums


def test_metrics_show_calls_retries_waits_and_losses_by_tool(stack: LocalStack, tmp_path: Path) -> None:
    client, go = stack.client, tmp_path / "go"
    for tool in ("say__plainly", "say__plainly", "say__twice", "made__up", "made__up-too"):
        client.call("host", tool, timeout=PATIENCE)
    waiting = [client.submit("host", "say__alone", {"until": str(go)}) for _ in range(2)]
    wait_until(lambda: client.agent_statuses()[0].queue.waiting_for_limit == 1)
    go.touch()
    for call in waiting:
        call.result(PATIENCE)
    lost = client.submit("host", "say__alone", {"until": str(tmp_path / "never")})
    wait_until(lambda: lost.status() == "running")
    worker, seen = stack.workers[0], dict[tuple[str, str | None, str | None], float]()
    env = environment(redis_url=stack.redis_url, bundle=LOG_LINES_BUNDLE)
    with serving("metrics", env=env) as server:

        def shows(*expected: tuple[str, str | None, str | None, float]) -> bool:
            seen.update(scraped(server.url))
            return all(seen.get(key[:3]) == key[3] for key in expected)

        counted = (
            ("goondan_calls_total", "say__plainly", "ok", 2),
            ("goondan_calls_total", "say__twice", "ok", 1),
            ("goondan_calls_total", "say__alone", "ok", 2),
            ("goondan_calls_total", "(unknown)", "E_TOOL_NOT_IN_CATALOG", 2),
            ("goondan_call_retries_total", "say__twice", "E_TOOL", 1),
            ("goondan_limit_waits_total", "say__alone", None, 1),
            ("goondan_call_run_seconds_count", "say__plainly", None, 2),
            ("goondan_call_wait_seconds_count", "say__plainly", None, 2),
        )
        wait_until(lambda: shows(*counted), show=lambda: seen)
        worker.kill()
        stack.start_worker()
        wait_until(lambda: shows(*counted, ("goondan_lost_calls_total", None, None, 1)), show=lambda: seen)
    error = lost.result(PATIENCE).error
    assert error is not None
    assert error.code == "E_TOOL_OUTCOME_UNKNOWN"


def test_all_dashboard_and_alert_metrics_are_served(stack: LocalStack) -> None:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [one["query"] for one in dashboard["templating"]["list"]]
    asked += [rule["expr"] for group in groups for rule in group["rules"]]
    env = environment(redis_url=stack.redis_url, bundle=LOG_LINES_BUNDLE)
    with serving("metrics", env=env) as server:
        families = exposed(server.url)

    served = {family.name + end for family in families for end in ENDINGS[family.type]}
    named = [re.findall(r"goondan_\w+", expression) for expression in asked]
    assert all(named)
    assert {name for names in named for name in names} <= served


def test_promtool_accepts_alerts() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian has it in the package prometheus)")
    done = subprocess.run(
        [promtool, "check", "rules", MONITORING / "alerts.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
