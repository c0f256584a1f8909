"""The page that leads through the code meets the functions that a real call meets, in their order."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from broker_config.process_group import end_processes
from goondan_tasks.testing import LocalStack
from tests.integration.conftest import CALLS_BUNDLE
from tests.integration.traced_worker import AGENT, ROOT, name_of
from tests.waiting import wait_until

PATIENCE = 30

ROW = re.compile(r"^\| (producer|worker|) ?\| `([^`]+)` \| `([^`]+)` \|")


def written_road() -> dict[str, list[str]]:
    """Return what the page names, by process."""
    page = (ROOT / "docs" / "explanation.md").read_text("utf-8")
    section = page.split("### Follow one call\n")[1].split("\n## ")[0]
    road: dict[str, list[str]] = {"producer": [], "worker": []}
    where = ""
    for row in filter(None, map(ROW.match, section.splitlines())):
        where = row[1] or where
        road[where].append(f"{row[2]} {row[3]}")
    return road


@contextmanager
def traced() -> Iterator[list[str]]:
    """Note which of our functions are called on any thread that begins now, and on this one."""
    names: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (name := name_of(frame)):
            names.append(name)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield names
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def is_in_order(names: Sequence[str], called: Sequence[str]) -> list[str]:
    """Return the names that do not come in their order among those that were called."""
    rest = iter(called)
    return [name for name in names if name not in rest]


def test_page_follows_real_call(tmp_path: Path) -> None:
    road, place = written_road(), tmp_path / "names"
    with traced() as of_producer, LocalStack(CALLS_BUNDLE, agents=[AGENT], workers=0) as stack:
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.traced_worker", str(place)],
            cwd=ROOT,
            env=stack._worker_environment(),
        )
        try:
            # the first calls find nothing known, and are prepared
            for number in range(5):
                result = stack.client.submit(AGENT, "echo__args", {"number": number}).result(PATIENCE)
                assert result.status == "ok"
            wait_until(place.exists, PATIENCE)
        finally:
            end_processes([worker], PATIENCE)
    assert road["producer"], "the page has no such table"
    assert is_in_order(road["producer"], of_producer) == []
    assert is_in_order(road["worker"], place.read_text("utf-8").splitlines()) == []
