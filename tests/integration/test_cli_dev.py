"""goondan dev as a process: what it starts, keeps running, follows and ends."""

import json
import os
import re
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

import httpx2
import pytest

from broker_config.keys import Keys
from goondan_tasks.client import Client
from goondan_tasks.contract.names import folder_workspace
from goondan_tasks.revisions.active import ActiveRevision, RevisionChange
from tests.git_bundle import make_bundle
from tests.integration.goondan_process import environment, start
from tests.javascript_runtimes import NAMES, runtime
from tests.processes import runs, with_environment
from tests.waiting import wait_until
from tests.wheels import make_wheel

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

OAUTH_APP = """\
---
apiVersion: goondan.ai/v1
kind: OAuthApp
metadata: {name: slack-bot}
spec:
  provider: slack
  flow: authorizationCode
  subjectMode: user
  client: {clientId: {value: our-id}, clientSecret: {value: s3cret}}
  endpoints:
    authorizationUrl: https://slack.example/authorize
    tokenUrl: https://slack.example/token
    userInfoUrl: https://slack.example/userinfo
  scopes: [chat:write]
  redirect: {callbackPath: /oauth/callback}
"""
CONNECTION = """\
---
apiVersion: goondan.ai/v1
kind: Connection
metadata: {name: %s}
spec:
  connectorRef: Connector/%s
  %s
"""
LACKING = {
    "orders": ("webhook", "verify: {webhook: {signingSecret: {valueFrom: {env: ORDERS_SECRET}}}}"),
    "chat": ("telegram", "secrets: {BOT_TOKEN: {valueFrom: {env: CHAT_TOKEN}}}"),
}
LISTENER = BUNDLE[BUNDLE.index("---") :].replace("speaker", "listener")
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
def running(
    bundle: Path,
    *options: str,
    grace_seconds: int = 5,
    until: str = "Ready: every agent has a worker.",
    **variables: str,
) -> Iterator[Dev]:
    """Run dev until it has said that workers are ready, and end it after the block if the block has not."""
    mark = uuid.uuid4().hex
    place = bundle.parent
    settings = environment(state_root=place / "state", cache_dir=place / "cache", grace_seconds=grace_seconds)
    env = {**settings, **variables, "MARK": mark}
    serves = () if "--serve" in options else ("--no-serve",)
    dev = Dev(start("dev", str(bundle), "--json", *serves, *options, env=env), mark)
    reader = threading.Thread(target=_read_lines, args=(dev,))
    reader.start()
    try:
        dev.places = _read_document(dev.process)
        wait_until(lambda: dev.has_said(until), PATIENCE)
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


def test_every_agent_has_worker_and_ctrl_c_ends_all(bundle: Path) -> None:
    with running(bundle, "--serve") as dev:
        assert dev.say() == "hello"
        wait_until(lambda: "goondan_up 1.0" in _page(f"{dev.places['serverUrl']}/metrics"), PATIENCE)
        assert "<title>Overview · Goondan</title>" in _page(dev.places["consoleUrl"])
        assert dev.has_said(f"Console: {dev.places['consoleUrl']}")
        assert dev.places["agents"] == ["speaker"]
        assert dev.places["workspace"] == folder_workspace(bundle)
        assert dev.has_said(f"instances (workspace {folder_workspace(bundle)})")
        wait_until(lambda: "agent.speaker" in _page(f"{dev.places['flowerUrl']}/broker"), PATIENCE)
        flower = [line.partition("| ")[2] for line in dev.lines if line.startswith("flower ")]
        assert all(re.match(r"Flower: http|\d\d:\d\d:\d\d ", line) for line in flower), flower

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


def _status(url: str, method: str = "GET") -> int:
    try:
        return httpx2.request(method, url, timeout=30).status_code
    except httpx2.TransportError:
        return 0


def test_door_of_oauth_opens_with_first_app(bundle: Path) -> None:
    with running(bundle, "--no-flower", "--serve") as dev:
        callback = f"{dev.places['serverUrl']}/oauth/callback"
        wait_until(lambda: _status(callback) == 404, PATIENCE)
        (bundle / "goondan.yaml").write_text(BUNDLE + OAUTH_APP, encoding="utf-8")
        wait_until(lambda: _status(callback) == 400, PATIENCE, show=lambda: dev.lines)


def test_workers_take_change_in_place_and_no_fault(bundle: Path) -> None:
    with running(bundle, "--no-flower") as dev:
        worker = dev.worker_pid()
        (bundle / "say.py").write_text(TOOL % "goodbye", encoding="utf-8")
        wait_until(lambda: dev.say() == "goodbye", PATIENCE)
        wait_until(lambda: dev.has_said("the workers have loaded it"), PATIENCE)

        (bundle / "goondan.yaml").write_text(BUNDLE.replace("kind: Agent", "kind: Aget"), encoding="utf-8")
        wait_until(lambda: dev.has_said("E_CONFIG_UNKNOWN_KIND"), PATIENCE)
        assert dev.has_said("is not valid; the workers keep the last version")
        (bundle / "goondan.yaml").write_text("a: [", encoding="utf-8")
        wait_until(lambda: dev.has_said("goondan.yaml:1"), PATIENCE)
        (bundle / "goondan.yaml").write_text(BUNDLE, encoding="utf-8")
        wait_until(lambda: dev.has_said("The bundle is valid again"), PATIENCE)
        (bundle / "say.py").write_text("handlers = {", encoding="utf-8")
        wait_until(lambda: dev.has_said(f"{bundle}/say.py:1: error E_CONFIG_SCHEMA_INVALID"), PATIENCE)
        assert dev.say() == "goodbye"

        (bundle / "say.py").write_text(TOOL % "hello again", encoding="utf-8")
        wait_until(lambda: dev.say() == "hello again", PATIENCE)
        assert dev.worker_pid() == worker


@pytest.mark.parametrize("name", NAMES)
def test_typescript_change_is_taken_in_place_and_packages_resolve(bundle: Path, name: str) -> None:
    (bundle / "goondan.yaml").write_text(BUNDLE.replace("say.py", "say.ts"), encoding="utf-8")
    package = bundle / "node_modules" / "shout"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"name": "shout", "main": "index.js"}', encoding="utf-8")
    (package / "index.js").write_text("module.exports = (text) => `${text}!`;\n", encoding="utf-8")
    tool = "import shout from 'shout';\nexport const handlers = { word: (): string => shout('%s') };\n"
    (bundle / "say.ts").write_text(tool % "hello", encoding="utf-8")
    with running(bundle, GOONDAN_JAVASCRIPT=runtime(name).program) as dev:
        worker = dev.worker_pid()
        assert dev.say() == "hello!"
        (bundle / "say.ts").write_text(tool % "bye", encoding="utf-8")
        wait_until(lambda: dev.say() == "bye!", PATIENCE)
        assert dev.worker_pid() == worker


def test_running_call_keeps_code_it_began_with(bundle: Path) -> None:
    gate = bundle.parent / "gate"
    waits = "import pathlib, time\n"
    waits += f"def word(ctx, input):\n    while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)\n"
    waits += "    return 'old'\nhandlers = {'word': word}\n"
    (bundle / "say.py").write_text(waits, encoding="utf-8")
    with running(bundle, "--no-flower") as dev, Client.connect(dev.places["redisUrl"]) as client:
        old = client.submit("speaker", "say__word", {})
        wait_until(lambda: old.status() == "running", PATIENCE)

        (bundle / "say.py").write_text(TOOL % "new", encoding="utf-8")
        wait_until(lambda: dev.has_said("the workers have loaded it"), PATIENCE)
        wait_until(lambda: dev.say() == "new", PATIENCE)
        assert old.status() == "running"
        gate.touch()

        assert old.result(PATIENCE).output == "old"


def test_only_added_or_removed_agents_workers_change(bundle: Path) -> None:
    with running(bundle, "--no-flower") as dev, Client.connect(dev.places["redisUrl"]) as client:
        first = dev.worker_pid()
        (bundle / "goondan.yaml").write_text(BUNDLE + LISTENER, encoding="utf-8")
        wait_until(lambda: len(client.workers()) == 2, PATIENCE)
        assert client.call("listener", "say__word", {}, timeout=PATIENCE).output == "hello"
        assert first in {worker.pid for worker in client.workers()}

        (bundle / "goondan.yaml").write_text(BUNDLE, encoding="utf-8")

        wait_until(lambda: [worker.pid for worker in client.workers()] == [first], PATIENCE)


@pytest.mark.parametrize(("options", "workers"), [((), 1), (("--worker-per-agent",), 2)])
def test_agents_share_worker_unless_each_wants_own(
    bundle: Path, options: tuple[str, ...], workers: int
) -> None:
    (bundle / "goondan.yaml").write_text(BUNDLE + LISTENER, encoding="utf-8")
    with running(bundle, "--no-flower", *options) as dev, Client.connect(dev.places["redisUrl"]) as client:
        assert len(client.workers()) == workers
        for agent in ("speaker", "listener"):
            assert client.call(agent, "say__word", {}, timeout=PATIENCE).output == "hello"


def test_connections_missing_variable_are_left_out_until_set(bundle: Path) -> None:
    connections = "".join(CONNECTION % (name, *of) for name, of in LACKING.items())
    (bundle / "goondan.yaml").write_text(BUNDLE + CHANGESETS.partition("  policy")[0] + connections)
    with running(bundle, "--no-flower", "--serve") as dev:
        server = dev.places["serverUrl"]
        orders = f"{server}/connections/orders"
        wait_until(lambda: _status(dev.places["consoleUrl"]) == 200, PATIENCE)
        wait_until(lambda: "CHAT_TOKEN" in _page(f"{server}/console/connections"), PATIENCE)
        refused = httpx2.post(orders, timeout=PATIENCE)
        listed = httpx2.get(f"{server}/v1/connections", timeout=PATIENCE).json()["items"]

        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "E_CONFIG_REF_NOT_FOUND"
        assert "Set ORDERS_SECRET where this runs" in refused.json()["error"]["message"]
        assert "ORDERS_SECRET" in _page(f"{server}/console/connections")
        assert [(one["name"], one["state"]) for one in listed] == [("chat", "stopped"), ("orders", "stopped")]
        for variable in ("CHAT_TOKEN", "ORDERS_SECRET"):
            assert sum(f"Set {variable}" in line for line in dev.lines) == 1
        assert not dev.has_said("has ended")

        (bundle / ".env").write_text("ORDERS_SECRET=ours\n", encoding="utf-8")
        wait_until(lambda: _status(orders, "POST") == 401, PATIENCE)


def test_agent_that_crashes_shared_worker_leaves_others_served(bundle: Path) -> None:
    # the check of the bundle knows no environment of ours, so only the worker fails
    (bundle / "mind.py").write_text(
        "import os\nassert 'MARK' not in os.environ, 'no luck'\ndef handle(ctx, event): ...\n",
        encoding="utf-8",
    )
    broken = LISTENER.replace("  tools: [", "  entry: mind.py\n  tools: [")
    (bundle / "goondan.yaml").write_text(BUNDLE + broken, encoding="utf-8")
    with running(bundle, "--no-flower", until="a worker of listener has crashed (5 in a row)") as dev:
        assert dev.has_said("from now on each of these 2 agents has a worker of its own")
        assert dev.say() == "hello"
        with Client.connect(dev.places["redisUrl"]) as client:
            error = client.call("listener", "say__word", {}, timeout=PATIENCE).error
        assert error is not None
        assert error.code == "E_AGENT_UNAVAILABLE"


def test_change_only_workers_cannot_load_leaves_old_version(bundle: Path) -> None:
    with running(bundle, "--no-flower") as dev:
        worker = dev.worker_pid()
        # the check knows no environment of ours
        fails = "import os\nassert 'MARK' not in os.environ, 'no luck'\n"
        (bundle / "say.py").write_text(fails + TOOL % "new", encoding="utf-8")

        wait_until(lambda: dev.has_said("cannot be loaded; the workers keep the last version"), PATIENCE)
        wait_until(lambda: dev.has_said(f"{bundle}/say.py:2: importing the file raises"), PATIENCE)
        assert dev.say() == "hello"
        (bundle / "say.py").write_text(TOOL % "new", encoding="utf-8")
        wait_until(lambda: dev.say() == "new", PATIENCE)
        assert dev.worker_pid() == worker


def test_workers_restart_for_variables_and_too_large_folder(bundle: Path) -> None:
    with running(bundle, "--no-flower") as dev:
        first = dev.worker_pid()
        (bundle / ".env").write_text("KEY=value\n", encoding="utf-8")
        wait_until(lambda: dev.has_said("variables have changed: restarting the workers"), PATIENCE)
        wait_until(lambda: not runs(first), PATIENCE)
        assert dev.say() == "hello"

    for number in range(20_001):
        (bundle / f"{number}.txt").touch()
    with running(bundle, "--no-flower") as dev:
        assert dev.has_said("Each change of the bundle will restart the workers: ")
        first = dev.worker_pid()
        (bundle / "say.py").write_text(TOOL % "goodbye", encoding="utf-8")
        wait_until(lambda: dev.say() == "goodbye", PATIENCE)
        wait_until(lambda: not runs(first), PATIENCE)


def test_bundle_requirements_are_installed_before_workers(bundle: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "needed_word", "1.0", text="WORD = 'installed'\n")
    required = f"  requirements: ['needed-word @ {wheel.as_uri()}']\n  entry:"
    (bundle / "goondan.yaml").write_text(BUNDLE.replace("  entry:", required), encoding="utf-8")
    (bundle / "say.py").write_text("from needed_word import WORD\n" + TOOL.replace("'%s'", "WORD"), "utf-8")
    target = str(tmp_path / "target")

    with running(bundle, "--no-flower", "--install", PIP_TARGET=target, PYTHONPATH=target) as dev:
        assert dev.has_said("Successfully installed needed")
        assert dev.say() == "installed"


def test_changed_typed_tool_signature_reaches_workers_and_producers(bundle: Path) -> None:
    (bundle / "goondan.yaml").write_text(TYPED_BUNDLE, encoding="utf-8")
    (bundle / "say.py").write_text(TYPED % "", encoding="utf-8")
    with running(bundle, "--no-flower") as dev:
        assert dev.say() == "None"

        (bundle / "say.py").write_text(TYPED % "text: str = 'new'", encoding="utf-8")
        wait_until(lambda: dev.say() == "new", PATIENCE)

        with Client.connect(dev.places["redisUrl"]) as client:
            wait_until(lambda: "text" in client.catalog("speaker")[0]["parameters"]["properties"], PATIENCE)


def test_variables_beside_bundle_and_changes_reach_workers(bundle: Path) -> None:
    read = (
        "import os\nhandlers = {'word': lambda ctx, input: [os.environ.get(n) for n in ('WORD', 'MARK')]}\n"
    )
    (bundle / "say.py").write_text(read, encoding="utf-8")
    (bundle / ".env").write_text("WORD=hello\nMARK=other\n", encoding="utf-8")
    with running(bundle, "--no-flower") as dev:
        assert dev.say() == ["hello", dev.mark]

        (bundle / ".env").write_text("WORD='goodbye\n", encoding="utf-8")
        wait_until(lambda: dev.has_said(".env: line 1 is not NAME=value."), PATIENCE)
        assert dev.say() == ["hello", dev.mark]
        (bundle / ".env").write_text("WORD=goodbye\n", encoding="utf-8")

        wait_until(lambda: dev.say() == ["goodbye", dev.mark], PATIENCE)
        assert not any("hello" in line or "goodbye" in line for line in dev.lines)


def test_commit_and_edit_reach_changeset_bundle_workers_in_place(tmp_path: Path) -> None:
    repository = make_bundle(
        tmp_path / "bundle", files={"goondan.yaml": BUNDLE + CHANGESETS, "say.py": TOOL % "hello"}
    )
    with running(repository.folder, "--no-flower") as dev:
        first = dev.worker_pid()

        repository.commit({"say.py": TOOL % "committed"})
        change = RevisionChange(new_ref=f"git:{repository.head}", timestamp="2026-01-01T00:00:00.000Z")
        with Client.connect(dev.places["redisUrl"]) as client:
            ActiveRevision(client._redis, Keys(), folder_workspace(repository.folder)).propose(change)
        wait_until(lambda: dev.say() == "committed", PATIENCE)
        (repository.folder / "say.py").write_text(TOOL % "edited", encoding="utf-8")
        wait_until(lambda: dev.say() == "edited", PATIENCE)
        assert dev.worker_pid() == first


def test_dead_worker_is_restarted_and_reported(bundle: Path) -> None:
    with running(bundle, "--no-flower") as dev:
        first = dev.worker_pid()

        os.kill(first, signal.SIGKILL)

        wait_until(
            lambda: dev.has_said("a worker of speaker has crashed (1 in a row), next start at once"), PATIENCE
        )
        assert dev.say() == "hello"


def test_callers_learn_why_agents_workers_crash(bundle: Path) -> None:
    # the check of the bundle knows no environment of ours, so only the workers fail
    (bundle / "mind.py").write_text(
        "import os\nassert 'MARK' not in os.environ, 'no luck'\ndef handle(ctx, event): ...\n",
        encoding="utf-8",
    )
    entry = BUNDLE.replace("  tools: [", "  entry: mind.py\n  tools: [")
    (bundle / "goondan.yaml").write_text(entry, encoding="utf-8")
    with running(bundle, "--no-flower", until="has crashed (5 in a row)") as dev:
        with Client.connect(dev.places["redisUrl"]) as client:
            error = client.call("speaker", "say__word", {}, timeout=PATIENCE).error

        assert error is not None
        assert error.code == "E_AGENT_UNAVAILABLE"
        assert "mind.py:2: importing the file raises AssertionError: no luck" in error.message
        (bundle / "mind.py").write_text("def handle(ctx, event): ...\n", encoding="utf-8")
        wait_until(lambda: dev.say() == "hello", PATIENCE)


def test_redis_keeps_address_and_results_for_next_time(bundle: Path) -> None:
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


def test_redis_that_dies_runs_again_where_it_was(bundle: Path) -> None:
    with running(bundle, "--no-flower") as dev:
        with Client.connect(dev.places["redisUrl"]) as client:
            server = client._redis.info("server")["process_id"]

        os.kill(server, signal.SIGKILL)

        wait_until(lambda: dev.has_said("Redis had exited. It runs again"), PATIENCE)
        assert dev.say() == "hello"
        assert sum("Redis cannot be reached" in line for line in dev.lines) <= 1


def test_no_process_is_left_when_dev_is_killed(bundle: Path) -> None:
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


def test_bundle_with_faults_starts_nothing(bundle: Path) -> None:
    (bundle / "say.py").write_text("handlers = {", encoding="utf-8")

    process = start("dev", str(bundle), env=environment(state_root=bundle.parent / "state"))
    _, told = process.communicate(timeout=PATIENCE)

    assert process.returncode == 3
    assert "say.py:1" in told
    assert not (bundle.parent / "state").exists()


def test_two_dev_runs_share_no_redis_directory(bundle: Path) -> None:
    with running(bundle, "--no-flower"):
        second = start("dev", str(bundle), env=environment(state_root=bundle.parent / "state"))
        _, told = second.communicate(timeout=PATIENCE)

    assert second.returncode == 5
    assert "Another process uses" in told
