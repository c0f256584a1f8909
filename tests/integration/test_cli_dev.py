"""goondan dev as a process: what it starts, keeps running, follows and ends."""

import json
import os
import signal
import subprocess
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broker_config.keys import Keys
from goondan_tasks.client import Client
from goondan_tasks.revisions.active import ActiveRevision, RevisionChange
from tests.git_bundle import make_bundle
from tests.integration.goondan_process import environment, start
from tests.processes import runs, with_environment
from tests.waiting import wait_until

PATIENCE = 60

BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Tool
metadata:
  name: say
spec:
  entry: say.py
  exports:
    - name: word
      description: Say the word.
      parameters: {type: object}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata:
  name: speaker
spec:
  tools: [Tool/say]
"""

CHANGESETS = """\
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata:
  name: default
spec:
  entryAgent: Agent/speaker
  agents: [Agent/speaker]
  policy:
    changesets: {enabled: true}
"""

SLEEPER = "handlers = {'word': lambda ctx, input: time.sleep(600)}\n"
TOOL = "handlers = {'word': lambda ctx, input: '%s'}\n"
TYPED_BUNDLE = BUNDLE.replace(BUNDLE[BUNDLE.index("  exports:") : BUNDLE.index("---")], "  exports: auto\n")
TYPED = """\
from goondan_tasks.tool_api import tool

@tool
def word(%s) -> str:
    return str(vars().get("text"))
"""


@dataclass
class Dev:
    """A running ``goondan dev``, its lines and its places."""

    process: "subprocess.Popen[str]"
    mark: str
    lines: list[str] = field(default_factory=list)
    places: dict[str, Any] = field(default_factory=dict)

    def has_said(self, text: str) -> bool:
        return any(text in line for line in list(self.lines))

    def say(self) -> Any:
        """Call the tool and return its word."""
        with Client.connect(self.places["redisUrl"]) as client:
            return client.call("speaker", "say__word", {}, timeout=PATIENCE).output

    def worker_pid(self) -> int:
        """Return the process id of the one worker, once there is exactly one."""
        with Client.connect(self.places["redisUrl"]) as client:
            wait_until(lambda: len(client.workers()) == 1, PATIENCE)
            return client.workers()[0].pid

    def running(self) -> list[int]:
        """List the processes that dev started, itself included."""
        return with_environment(f"MARK={self.mark}")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Write a bundle of one agent with one tool."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "goondan.yaml").write_text(BUNDLE, encoding="utf-8")
    (folder / "say.py").write_text(TOOL % "hello", encoding="utf-8")
    return folder


@contextmanager
def running(bundle: Path, *options: str, grace_seconds: int = 5) -> Iterator[Dev]:
    """Run dev until its workers are ready, and end it after the block if the block has not."""
    mark = uuid.uuid4().hex
    place = bundle.parent
    settings = environment(state_root=place / "state", cache_dir=place / "cache", grace_seconds=grace_seconds)
    env = {**settings, "MARK": mark}
    dev = Dev(start("dev", str(bundle), "--json", *options, env=env), mark)
    reader = threading.Thread(target=_read_lines, args=(dev,))
    reader.start()
    try:
        dev.places = _read_document(dev.process)
        wait_until(lambda: dev.has_said("Ready: every agent has a worker."), PATIENCE)
        yield dev
    finally:
        dev.process.kill()
        dev.process.wait()
        reader.join(PATIENCE)
        for stream in (dev.process.stdout, dev.process.stderr):
            assert stream is not None
            stream.close()


def _read_lines(dev: Dev) -> None:
    assert dev.process.stderr is not None
    dev.lines.extend(iter(dev.process.stderr.readline, ""))


def _read_document(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Read stdout up to the end of the document; the process goes on."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if line == "}\n":
            break
    document: dict[str, Any] = json.loads(text)
    return document


def test_every_agent_has_a_worker_and_everything_ends_with_ctrl_c(bundle: Path) -> None:
    with running(bundle) as dev:
        assert dev.say() == "hello"
        assert dev.places["agents"] == ["speaker"]
        wait_until(lambda: "agent.speaker" in _page(f"{dev.places['flowerUrl']}/broker"), PATIENCE)

        dev.process.send_signal(signal.SIGINT)

        assert dev.process.wait(PATIENCE) == 130
        wait_until(lambda: dev.running() == [])
        assert not any("Traceback" in line for line in dev.lines)


def _page(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - our own address
            text: str = response.read().decode()
            return text
    except OSError:
        return ""


def test_a_change_of_the_bundle_reaches_the_workers_and_a_fault_does_not(bundle: Path) -> None:
    with running(bundle, "--no-flower") as dev:
        first = dev.worker_pid()

        (bundle / "say.py").write_text(TOOL % "goodbye", encoding="utf-8")
        wait_until(lambda: dev.say() == "goodbye", PATIENCE)
        wait_until(lambda: not runs(first), PATIENCE)

        second = dev.worker_pid()
        (bundle / "goondan.yaml").write_text(BUNDLE.replace("kind: Agent", "kind: Aget"), encoding="utf-8")
        wait_until(lambda: dev.has_said("is not valid; the workers go on as before"), PATIENCE)

        wait_until(lambda: dev.has_said("E_CONFIG_UNKNOWN_KIND"), PATIENCE)
        assert dev.worker_pid() == second
        assert dev.say() == "goodbye"


def test_another_signature_of_a_typed_tool_reaches_workers_and_producers(bundle: Path) -> None:
    (bundle / "goondan.yaml").write_text(TYPED_BUNDLE, encoding="utf-8")
    (bundle / "say.py").write_text(TYPED % "", encoding="utf-8")
    with running(bundle, "--no-flower") as dev:
        assert dev.say() == "None"

        (bundle / "say.py").write_text(TYPED % "text: str = 'new'", encoding="utf-8")
        wait_until(lambda: dev.say() == "new", PATIENCE)

        with Client.connect(dev.places["redisUrl"]) as client:
            wait_until(lambda: "text" in client.catalog("speaker")[0]["parameters"]["properties"], PATIENCE)


def test_a_commit_reaches_the_workers_without_a_restart_and_an_edit_with_one(tmp_path: Path) -> None:
    repository = make_bundle(
        tmp_path / "bundle", files={"goondan.yaml": BUNDLE + CHANGESETS, "say.py": TOOL % "hello"}
    )
    with running(repository.folder, "--no-flower") as dev:
        first = dev.worker_pid()

        repository.commit({"say.py": TOOL % "committed"})
        change = RevisionChange(new_ref=f"git:{repository.head}", timestamp="2026-01-01T00:00:00.000Z")
        with Client.connect(dev.places["redisUrl"]) as client:
            ActiveRevision(client._redis, Keys(), "default").propose(change)
        wait_until(lambda: dev.say() == "committed", PATIENCE)
        wait_until(lambda: dev.has_said("its workers go on"), PATIENCE)
        assert dev.worker_pid() == first

        (repository.folder / "say.py").write_text(TOOL % "edited", encoding="utf-8")
        wait_until(lambda: dev.say() == "edited", PATIENCE)


def test_a_worker_that_dies_is_started_again_and_said_so(bundle: Path) -> None:
    with running(bundle, "--no-flower") as dev:
        first = dev.worker_pid()

        os.kill(first, signal.SIGKILL)

        wait_until(
            lambda: dev.has_said("a worker of speaker has crashed (1 in a row), next start at once"), PATIENCE
        )
        assert dev.say() == "hello"


def test_callers_of_an_agent_whose_workers_crash_are_told_why(bundle: Path) -> None:
    with running(bundle, "--no-flower") as dev:
        # the check of a change knows no environment of ours, so only the workers fail
        (bundle / "mind.py").write_text(
            "import os\nassert 'MARK' not in os.environ, 'no luck'\ndef handle(ctx, event): ...\n",
            encoding="utf-8",
        )
        entry = BUNDLE.replace("  tools: [", "  entry: mind.py\n  tools: [")
        (bundle / "goondan.yaml").write_text(entry, encoding="utf-8")

        wait_until(lambda: dev.has_said("a worker of speaker has crashed (5 in a row)"), PATIENCE)
        with Client.connect(dev.places["redisUrl"]) as client:
            error = client.call("speaker", "say__word", {}, timeout=PATIENCE).error

        assert error is not None
        assert error.code == "E_AGENT_UNAVAILABLE"
        assert "mind.py:2: importing the file raises AssertionError: no luck" in error.message
        (bundle / "mind.py").write_text("def handle(ctx, event): ...\n", encoding="utf-8")
        wait_until(lambda: dev.say() == "hello", PATIENCE)


def test_redis_keeps_address_and_results_for_the_next_time(bundle: Path) -> None:
    with running(bundle, "--no-flower") as dev:
        with Client.connect(dev.places["redisUrl"]) as client:
            call = client.submit("speaker", "say__word", {})
            call.result(PATIENCE)
        first = dev.places["redisUrl"]
        dev.process.send_signal(signal.SIGTERM)
        assert dev.process.wait(PATIENCE) == 143

    with running(bundle, "--no-flower") as dev, Client.connect(first) as client:
        assert dev.places["redisUrl"] == first
        assert client.pending(call.id).result(PATIENCE).output == "hello"


def test_a_redis_that_dies_runs_again_where_it_was(bundle: Path) -> None:
    with running(bundle, "--no-flower") as dev:
        with Client.connect(dev.places["redisUrl"]) as client:
            server = client._redis.info("server")["process_id"]

        os.kill(server, signal.SIGKILL)

        wait_until(lambda: dev.has_said("Redis had ended. It runs again"), PATIENCE)
        assert dev.say() == "hello"
        assert sum("Redis cannot be reached" in line for line in dev.lines) <= 1


def test_nothing_is_left_when_dev_is_killed(bundle: Path) -> None:
    with running(bundle) as dev:
        assert len(dev.running()) >= 3

        dev.process.kill()

        wait_until(lambda: dev.running() == [])


def test_ctrl_c_twice_waits_for_no_call(bundle: Path) -> None:
    (bundle / "say.py").write_text("import time\n" + SLEEPER, encoding="utf-8")
    with running(bundle, "--no-flower", grace_seconds=600) as dev:
        with Client.connect(dev.places["redisUrl"]) as client:
            call = client.submit("speaker", "say__word", {})
            wait_until(lambda: call.status() == "running", PATIENCE)

            dev.process.send_signal(signal.SIGINT)
            wait_until(lambda: dev.has_said("Stopping: running calls have 600 s"), PATIENCE)
            dev.process.send_signal(signal.SIGINT)

        assert dev.process.wait(PATIENCE) == 130
        wait_until(lambda: dev.running() == [])


def test_a_bundle_with_faults_starts_nothing(bundle: Path) -> None:
    (bundle / "say.py").write_text("handlers = {", encoding="utf-8")

    process = start("dev", str(bundle), env=environment(state_root=bundle.parent / "state"))
    _, told = process.communicate(timeout=PATIENCE)

    assert process.returncode == 3
    assert "say.py:1" in told
    assert not (bundle.parent / "state").exists()


def test_two_of_them_do_not_share_one_redis_directory(bundle: Path) -> None:
    with running(bundle, "--no-flower"):
        second = start("dev", str(bundle), env=environment(state_root=bundle.parent / "state"))
        _, told = second.communicate(timeout=PATIENCE)

    assert second.returncode == 5
    assert "Another process uses" in told
