"""A worker that takes one revision after the other: its calls go on, and what is over is let go of."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_config.keys import Keys
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.revisions.active import ActiveRevision, RevisionChange
from goondan_tasks.testing import LocalStack
from tests.git_bundle import GitBundle, make_bundle
from tests.waiting import wait_until

REVISIONS_BUNDLE = Path(__file__).parents[1] / "bundles" / "revisions"
SWITCHES = 6
#: how many revisions a worker keeps for calls that come late, and the active one
KEPT = 4 + 1
SWARM = """\
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: closet }
spec:
  entryAgent: Agent/tailor
  agents: [Agent/tailor]
  policy: { changesets: { enabled: true } }
"""


@pytest.fixture
def bundle(tmp_path: Path) -> GitBundle:
    found = [*REVISIONS_BUNDLE.rglob("*.py"), *REVISIONS_BUNDLE.rglob("*.yaml")]
    files = {str(file.relative_to(REVISIONS_BUNDLE)): file.read_text("utf-8") for file in found}
    files["goondan.yaml"] += SWARM
    return make_bundle(tmp_path / "bundle", files=files)


@pytest.fixture
def stack(bundle: GitBundle, tmp_path: Path) -> Iterator[LocalStack]:
    environment = {"GOONDAN_CACHE_DIR": str(tmp_path / "cache"), "GOONDAN_WORKSPACE": "closet"}
    with LocalStack(bundle.folder, environment=environment) as stack:
        yield stack


class Calls(threading.Thread):
    """Calls the tool in the worker and the one in a child of it, again and again."""

    def __init__(self, stack: LocalStack) -> None:
        super().__init__()
        self._client = stack.client
        self.results: list[ToolCallResult] = []
        self.enough = threading.Event()

    def have_said(self, word: str) -> bool:
        """Say whether a call has returned this."""
        return any(result.output == word for result in list(self.results))

    def run(self) -> None:
        """Call until it is enough."""
        while not self.enough.wait(0.2):
            tools = [*["coat__word"] * 4, "box__word", "mirror__look"]
            calls = [self._client.submit("tailor", tool) for tool in tools]
            self.results += [call.result(60) for call in calls]


def modules(stack: LocalStack) -> int:
    """Return how many modules of entries the worker has."""
    count: int = stack.client.call("tailor", "coat__census", timeout=30).output
    return count


def switch(stack: LocalStack, bundle: GitBundle, word: str) -> None:
    """Commit a revision, and wait until it is active."""
    words = f"WORD = {word!r}\n"
    ref = f"git:{bundle.commit({'tools/words.py': words, 'extensions/words.py': words})}"
    active = ActiveRevision(stack.client._redis, Keys(), "closet")
    active.propose(RevisionChange(new_ref=ref, timestamp="2026-01-01T00:00:00.000Z"))
    wait_until(lambda: (active.state() or active.begin(ref)).active == ref, 60)


def test_calls_survive_many_switches_and_old_revisions_vanish(stack: LocalStack, bundle: GitBundle) -> None:
    for tool in ("coat__word", "heirloom.word"):  # a revision that comes later loads all of its tools
        stack.client.call("tailor", tool, timeout=30)
    modules_of_one = modules(stack)
    calls = Calls(stack)
    calls.start()

    for number in range(SWITCHES):
        switch(stack, bundle, f"word-{number}")
        # a producer looks once a second which revision is active
        wait_until(lambda number=number: calls.have_said(f"word-{number}"))  # type: ignore[misc]
    calls.enough.set()
    calls.join()

    assert {result.status for result in calls.results} == {"ok"}
    wait_until(lambda: modules(stack) <= KEPT * modules_of_one, 30, show=lambda: modules(stack))
