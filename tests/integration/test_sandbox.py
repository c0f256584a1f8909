"""Sandboxed programs and isolated tools on a real worker: what they cannot reach, and how they end."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from goondan_tasks.contract.errors import AgentUnavailableError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.machine import sandbox
from goondan_tasks.testing import LocalStack
from tests.javascript_runtimes import NAMES, runtime
from tests.processes import with_environment
from tests.waiting import wait_until
from workers.processes.confinement import Confinement
from workers.testing import run_tool

pytestmark = pytest.mark.usefixtures("fresh_programs")

PATIENCE = 60
CANARY = "canary-2b7d10"
FAULT = sandbox.fault()
needs_bubblewrap = pytest.mark.skipif(FAULT is not None, reason=f"no sandbox here: {FAULT}")

BUNDLE = """
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: free }
spec: { tools: [Tool/bash] }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: boxed }
spec:
  tools:
    - Tool/far
    - selector: { kind: Tool, name: bash }
      overrides: { spec: { sandbox: true } }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: strict }
spec:
  tools:
    - selector: { kind: Tool, name: far }
      overrides: { spec: { sandbox: strict } }
    - selector: { kind: Tool, name: bash }
      overrides: { spec: { sandbox: strict } }
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: far }
spec:
  entry: ./far.py
  isolation: process
  sandbox: true
  exports:
    - { name: exec, parameters: { type: object } }
    - { name: connect, parameters: { type: object } }
    - { name: sleep, parameters: { type: object } }
"""
FAR = """
import os
import socket
import subprocess
import sys
import time


def run(ctx, input):
    # as code would that means harm: without ctx.run_process
    done = subprocess.run(["sh", "-c", input["command"]], capture_output=True, text=True)
    return {"stdout": done.stdout, "exitCode": done.returncode}


def connect(ctx, input):
    try:
        socket.create_connection(("127.0.0.1", input["port"]), timeout=5).close()
    except OSError as error:
        return type(error).__name__
    return "connected"


def sleep(ctx, input):
    os.environ.update(input["env"])
    subprocess.run(["setsid", "sleep", "600"])


handlers = {"exec": run, "connect": connect, "sleep": sleep}
"""

SEATS = [("boxed", "bash"), ("strict", "bash"), ("boxed", "far"), ("strict", "far")]
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("box") / "bundle"
    folder.mkdir()
    (folder / "goondan.yaml").write_text(BUNDLE, "utf-8")
    (folder / "far.py").write_text(FAR, "utf-8")
    return folder


@pytest.fixture(scope="module")
def stack(bundle: Path) -> Iterator[LocalStack]:
    home = bundle.parent / "home"
    home.mkdir()
    (home / ".netrc").write_text(CANARY, "utf-8")
    # the state root lies in what a sandbox shows read-only
    state_root = str(bundle / "state")
    environment = {"GOONDAN_STATE_ROOT": state_root, "HOME": str(home), "BOX_TOKEN": CANARY}
    with LocalStack(bundle, environment=environment) as stack:
        yield stack


@pytest.fixture(params=SEATS, ids="-".join)
def run(request: pytest.FixtureRequest, stack: LocalStack) -> Run:
    """Run a command in one kind of sandbox."""
    agent, tool = request.param

    def run(command: str) -> Any:
        return exec_in(stack, agent, tool, command)

    return run


def exec_in(stack: LocalStack, agent: str, tool: str, command: str, instance: str = "mine") -> Any:
    call = stack.client.call(
        agent, f"{tool}__exec", {"command": command}, instance_key=instance, timeout=PATIENCE
    )
    assert call.status == "ok", call.error
    return call.output


@pytest.fixture
def other_file(stack: LocalStack) -> Path:
    """Return the file of another instance, which a program without a sandbox can read."""
    place = exec_in(stack, "free", "bash", f"echo {CANARY} > note; pwd", "other")["stdout"].strip()
    file = Path(place) / "note"
    assert CANARY in exec_in(stack, "free", "bash", f"cat {file}")["stdout"]
    return file


@needs_bubblewrap
def test_program_works_in_its_workdir(run: Run, stack: LocalStack) -> None:
    output = run("echo kept > file && cat file && python3 -c 'print(6 * 7)' && mktemp && pwd")

    assert output["exitCode"] == 0, output
    kept, product, _, place = output["stdout"].splitlines()
    assert (kept, product) == ("kept", "42")
    assert Path(place, "file").read_text("utf-8") == "kept\n"
    assert Path(place).is_relative_to(stack.state_root)


@needs_bubblewrap
def test_program_cannot_read_another_instance(run: Run, other_file: Path) -> None:
    output = run(f"cat {other_file} {other_file.parents[1]}/*/note; ls {other_file.parent}")

    assert (output["stdout"], output["exitCode"] != 0) == ("", True)


@needs_bubblewrap
def test_program_sees_only_its_workdir_of_state_root(run: Run, stack: LocalStack, other_file: Path) -> None:
    root = shlex.quote(str(stack.state_root))
    (stack.state_root / "key").write_text(CANARY, "utf-8")
    place = run("pwd")["stdout"].strip()

    files = run(f"touch here; find {root} -type f")["stdout"].splitlines()

    assert [file for file in files if not file.startswith(f"{place}/")] == []
    assert f"{place}/here" in files


@needs_bubblewrap
def test_program_sees_and_reaches_no_process_of_worker(run: Run, stack: LocalStack) -> None:
    [worker] = stack.workers
    output = run(f"cat /proc/{worker.pid}/environ; kill -9 {worker.pid} && echo killed; cat /proc/*/environ")

    assert "PATH=" in output["stdout"]
    assert CANARY not in output["stdout"]
    assert "killed" not in output["stdout"]
    assert worker.poll() is None


@needs_bubblewrap
def test_program_reads_system_and_bundle_and_writes_neither(run: Run, bundle: Path) -> None:
    places = f"/usr/box {bundle}/box {sandbox.__file__}.box"
    output = run(f"cat {bundle}/far.py; for place in {places}; do touch $place && echo written; done; true")

    assert output["stdout"] == FAR
    assert not (bundle / "box").exists()


@needs_bubblewrap
def test_program_has_empty_home_and_no_password_file(run: Run) -> None:
    output = run("ls -A ~; touch ~/tried; cat ~/.netrc /etc/shadow; ls ~")

    assert output["stdout"].split() == ["tried"]


@needs_bubblewrap
@pytest.mark.parametrize(("agent", "answer"), [("boxed", "connected"), ("strict", "ConnectionRefusedError")])
def test_only_strict_sandbox_has_no_network(stack: LocalStack, agent: str, answer: str) -> None:
    port = stack.client.settings.redis_url.rpartition(":")[2].partition("/")[0]
    result = stack.client.call(agent, "far__connect", {"port": int(port)}, timeout=PATIENCE)

    assert (result.status, result.output) == ("ok", answer)


def begin(stack: LocalStack, tool: str, mark: str) -> Any:
    """Start a call with a grandchild in a session of its own, and wait until it runs."""
    env = {"BOX_MARK": mark}
    args = {"command": "setsid sleep 600", "env": env, "timeoutMs": 0} if tool == "bash" else {"env": env}
    name = "bash__exec" if tool == "bash" else "far__sleep"
    call = stack.client.submit("boxed", name, args, timeout_seconds=600)
    wait_until(lambda: with_environment(f"BOX_MARK={mark}"), PATIENCE)
    return call


@needs_bubblewrap
@pytest.mark.parametrize("tool", ["bash", "far"])
def test_cancelled_call_leaves_no_process_of_its_sandbox(stack: LocalStack, tool: str) -> None:
    call = begin(stack, tool, mark := f"cancel-{tool}")
    call.cancel()

    assert call.result(timeout=PATIENCE).error.code == "E_TOOL_CANCELLED"
    wait_until(lambda: not with_environment(f"BOX_MARK={mark}"), PATIENCE)


@needs_bubblewrap
@pytest.mark.parametrize("tool", ["bash__exec", "far__sleep"])
def test_call_past_limit_leaves_no_sandbox_process(stack: LocalStack, tool: str) -> None:
    mark = f"limit-{tool}"
    env = {"BOX_MARK": mark}
    args = {"command": "setsid sleep 600", "timeoutMs": 0, "env": env} if "bash" in tool else {"env": env}
    result = stack.client.call("boxed", tool, args, timeout_seconds=2, timeout=PATIENCE)

    assert result.error is not None
    assert result.error.code == "E_TOOL_TIMEOUT"
    wait_until(lambda: not with_environment(f"BOX_MARK={mark}"), PATIENCE)


@needs_bubblewrap
def test_sandbox_ends_with_worker_that_is_killed(bundle: Path) -> None:
    with LocalStack(bundle, agents=["boxed"]) as stack:
        for tool in ("bash", "far"):
            begin(stack, tool, f"kill-{tool}")
        os.kill(stack.workers[0].pid, signal.SIGKILL)
        wait_until(lambda: not with_environment("BOX_MARK=kill-bash"), PATIENCE)
        wait_until(lambda: not with_environment("BOX_MARK=kill-far"), PATIENCE)


def test_worker_without_bubblewrap_refuses_only_agents_needing_it(bundle: Path, tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path)}
    with LocalStack(bundle, agents=["free"], environment=environment) as stack:
        with pytest.raises(AgentUnavailableError, match="ended with 3") as refused:
            stack.start_worker(["boxed"])

        assert "bubblewrap (bwrap) is not installed" in refused.value.message
        assert "apt-get install bubblewrap" in refused.value.message


PEEPING = """
import { existsSync, writeFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';

export const handlers = {
  look: (ctx, { path }) => {
    writeFileSync(join(ctx.workdir, 'seen'), 'by its own instance');
    const interfaces = Object.keys(networkInterfaces()).filter((name) => name !== 'lo');
    return { sees: existsSync(path), interfaces };
  },
};
"""


def write_bundle(folder: Path, export: JsonObject, code: str, suffix: str = "mjs") -> None:
    """Write a bundle with the agent ``tom`` and the tool ``peeping``, which has one export."""
    resources: list[tuple[str, str, JsonObject]] = [
        ("Tool", "peeping", {"entry": f"./peeping.{suffix}", "exports": [export]}),
        ("Agent", "tom", {"tools": ["Tool/peeping"]}),
    ]
    documents = [
        {"apiVersion": "goondan.ai/v1", "kind": kind, "metadata": {"name": called}, "spec": spec}
        for kind, called, spec in resources
    ]
    folder.mkdir()
    (folder / "goondan.yaml").write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    (folder / f"peeping.{suffix}").write_text(code, encoding="utf-8")


@needs_bubblewrap
@pytest.mark.parametrize("name", NAMES)
def test_tool_in_javascript_sees_its_instance_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("GOONDAN_JAVASCRIPT", runtime(name).program)
    export = {"name": "look", "parameters": {"type": "object"}, "sandbox": "strict"}
    write_bundle(tmp_path / "bundle", export, PEEPING)
    secret = tmp_path / "state/secret"
    secret.parent.mkdir()
    secret.touch()

    args = {"path": str(secret)}
    result = run_tool(tmp_path / "bundle", "tom", "peeping__look", args, state_root=tmp_path / "state")

    assert (result.output, result.error) == ({"sees": False, "interfaces": []}, None)
    assert [seen.read_text() for seen in tmp_path.rglob("seen")] == ["by its own instance"]


LOADING = """
import { createRequire } from 'node:module';
import { isMainThread } from 'node:worker_threads';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

if (!isMainThread) {
  globalThis.postMessage(process.env.PLANTED ?? '');
}
// Node has no global Worker
const inWorker = () => globalThis.Worker && new Promise((resolve, reject) => {
  const worker = new globalThis.Worker(import.meta.url);
  Object.assign(worker, { onmessage: ({ data }) => resolve(data), onerror: reject });
});

export const handlers = {
  look: async (ctx) => {
    writeFileSync('beside', 'relative');
    let word = 'none';
    try {
      word = createRequire(import.meta.url)('planted');
    } catch {}
    const { BOX_TOKEN } = process.env;
    const PLANTED = process.env.PLANTED ?? (await inWorker());
    const cwd = process.cwd() === ctx.workdir;
    return { hasToken: Boolean(BOX_TOKEN), isPlanted: Boolean(PLANTED), word, cwd };
  },
};
"""
STEAL = "require('node:fs').writeFileSync('stolen', process.env.BOX_TOKEN ?? '');"


@needs_bubblewrap
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("box", [None, True, "strict"])
def test_files_of_workdir_change_no_tool_in_javascript(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, box: object
) -> None:
    monkeypatch.setenv("GOONDAN_JAVASCRIPT", runtime(name).program)
    monkeypatch.setenv("BOX_TOKEN", CANARY)
    export = {"name": "look", "parameters": {"type": "object"}, "env": ["BOX_TOKEN"]}
    bundle = tmp_path / "bundle"
    write_bundle(bundle, {**export, **({"sandbox": box} if box else {})}, LOADING)
    first = run_tool(bundle, "tom", "peeping__look", {}, state_root=tmp_path / "state")
    [beside] = tmp_path.rglob("beside")  # a host without a sandbox is the bundle's, and works in its folder
    planted = {
        "bunfig.toml": 'preload = ["./steal.cjs"]\n',
        ".env": "PLANTED=yes\n",
        "tsconfig.json": '{"compilerOptions": {"baseUrl": ".", "paths": {"planted": ["./planted.cjs"]}}}',
        "package.json": '{"imports": {"planted": "./planted.cjs"}}',
        "planted.cjs": f"module.exports = 'planted'; {STEAL}",
        "steal.cjs": STEAL,
    }
    for file, text in planted.items():
        # a bundle's own tsconfig.json is its author's
        if box or file in {"bunfig.toml", ".env", "steal.cjs"}:
            (beside.parent / file).write_text(text, encoding="utf-8")

    result = run_tool(bundle, "tom", "peeping__look", {}, state_root=tmp_path / "state")

    assert (
        first.output == result.output == {"hasToken": True, "isPlanted": False, "word": "none", "cwd": True}
    )
    assert [file.name for file in tmp_path.rglob("stolen")] == []
    assert (beside.parent == bundle) is (box is None)


@needs_bubblewrap
def test_nothing_runs_in_directory_replacing_workdir(tmp_path: Path) -> None:
    workdir, other = tmp_path / "work", tmp_path / "other"
    for place in (workdir, other):
        place.mkdir()
    status = workdir.stat()
    box = sandbox.Sandbox(workdir, identity=(status.st_dev, status.st_ino))
    argv = box.command(["/bin/sh", "-c", "echo here > mark"], workdir, None)

    right = subprocess.run(argv, capture_output=True, text=True, check=False)
    workdir.rename(tmp_path / "moved")
    workdir.symlink_to(other)
    wrong = subprocess.run(argv, capture_output=True, text=True, check=False)

    assert (right.returncode, right.stderr) == (0, "")
    assert wrong.returncode == 126
    assert "another directory has taken the place" in wrong.stderr
    assert [file.parent.name for file in tmp_path.rglob("mark")] == ["moved"]


@needs_bubblewrap
def test_home_of_call_may_be_workdir_in_sandbox(stack: LocalStack) -> None:
    workdir = exec_in(stack, "strict", "bash", "pwd")["stdout"].strip()
    written = {"command": 'echo kept > "$HOME/file"; cat "$HOME/file"', "env": {"HOME": workdir}}

    result = stack.client.call("strict", "bash__exec", written, instance_key="mine", timeout=PATIENCE)

    assert result.output["stdout"] == "kept\n"
    assert (Path(workdir) / "file").read_text() == "kept\n"


READING_THE_LOG = {
    "mjs": """
import { constants, openSync, readSync } from 'node:fs';

export const handlers = {
  look: () => {
    const log = openSync('/proc/self/fd/2', constants.O_RDONLY | constants.O_NONBLOCK);
    const data = Buffer.alloc(1000);
    try {
      return data.toString('utf-8', 0, readSync(log, data));
    } catch {
      return '';
    } finally {
      process.stderr.write('printed in the sandbox\\n');
    }
  },
};
""",
    "py": """
import os


def look(ctx, input):
    log = os.open("/proc/self/fd/2", os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(log, 1000).decode()
    except BlockingIOError:
        return ""
    finally:
        os.write(2, b"printed in the sandbox\\n")


handlers = {"look": look}
""",
}


@needs_bubblewrap
@pytest.mark.parametrize("suffix", READING_THE_LOG)
def test_sandboxed_tool_writes_log_but_cannot_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], suffix: str
) -> None:
    export = {"name": "look", "parameters": {"type": "object"}, "sandbox": "strict"}
    export |= {"isolation": "process"} if suffix == "py" else {}
    write_bundle(tmp_path / "bundle", export, READING_THE_LOG[suffix], suffix)
    os.write(2, b"a line about another call\n")

    result = run_tool(tmp_path / "bundle", "tom", "peeping__look", {}, state_root=tmp_path / "state")

    assert result.error is None
    assert "another call" not in result.output
    printed = ""

    def has_printed() -> bool:
        nonlocal printed
        printed += capfd.readouterr().err
        return "printed in the sandbox" in printed

    wait_until(has_printed)


def test_workdir_below_link_has_no_sandbox(tmp_path: Path) -> None:
    instances = tmp_path / "workspaces" / "shop" / "instances"
    (instances / "one" / "workspace").mkdir(parents=True)
    (instances / "two").mkdir()
    (instances / "two" / "workspace").symlink_to(instances / "one" / "workspace")
    bound = SimpleNamespace(export=SimpleNamespace(sandbox="strict"))

    assert Confinement().sandbox(cast(Any, bound), instances / "one" / "workspace") is not None
    with pytest.raises(OSError):
        Confinement().sandbox(cast(Any, bound), instances / "two" / "workspace")


OPENING = """
import os
import sys
from pathlib import Path


def look(ctx, input):
    Path("beside").touch()
    relative = [one for one in sys.path if not os.path.isabs(one)]
    return {"hasToken": "BOX_TOKEN" in os.environ, "onPath": relative}


handlers = {"look": look}
"""


@needs_bubblewrap
def test_workdir_files_change_no_isolated_python_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOX_TOKEN", CANARY)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    policy = {"isolation": "process", "sandbox": "strict", "env": ["BOX_TOKEN"]}
    export = {"name": "look", "parameters": {"type": "object"}, **policy}
    write_bundle(tmp_path / "bundle", export, OPENING, "py")
    run_tool(tmp_path / "bundle", "tom", "peeping__look", {}, state_root=tmp_path / "state")
    [beside] = tmp_path.rglob("beside")
    for name in ("sitecustomize", "usercustomize", "socket", "asyncio", "goondan_tasks"):
        steal = "import os; open('stolen', 'w').write(os.environ.get('BOX_TOKEN', ''))"
        (beside.parent / f"{name}.py").write_text(steal, "utf-8")

    result = run_tool(tmp_path / "bundle", "tom", "peeping__look", {}, state_root=tmp_path / "state")

    assert (result.output, result.error) == ({"hasToken": True, "onPath": []}, None)
    assert list(tmp_path.rglob("stolen")) == []
