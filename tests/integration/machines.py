"""Machines that run one bundle: each has a clone and a cache of its own.

Redis, the state root and the git remote are shared.
"""

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from broker_config.keys import Keys
from goondan_tasks.client import Client
from goondan_tasks.contract.messages import JsonObject, ToolCallError, ToolCallResult
from goondan_tasks.revisions.active import LOAD_LEASE_SECONDS, ActiveRevision, RevisionChange, RevisionState
from goondan_tasks.testing import LocalStack
from tests.git_bundle import GitBundle, git, make_bundle
from tests.waiting import wait_until

WORKSPACE = "meadow"
Worker = subprocess.Popen[bytes]

_YAML = """\
apiVersion: goondan.ai/v1
kind: Package
metadata: { name: meadow }
spec: {}
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: default }
spec:
  entryAgent: "Agent/lizard"
  agents: ["Agent/lizard", "Agent/newt"]
  policy:
    changesets: { enabled: true, allowed: { files: ["**"] }, emitRevisionChangedEvent: true }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: lizard }
spec: { tools: ["Tool/skin"], extensions: ["Extension/ear"] }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: newt }
spec: { tools: ["Tool/skin"], entry: ./newt.py }
---
apiVersion: goondan.ai/v1
kind: Extension
metadata: { name: ear }
spec: { entry: ./ear.py }
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: skin }
spec:
  entry: ./skin/__init__.py
  exports:
    - { name: colour, description: Return the colour. }
    - { name: shed, description: "Wait for a file, and return the colours before and after." }
"""
_SKIN = """\
import importlib
import time
from pathlib import Path

from .colour import COLOUR


async def colour(ctx, input):
    return COLOUR


def shed(ctx, input):
    ctx.workdir.joinpath("shedding").touch()
    while not Path(input["until"]).exists():
        time.sleep(0.01)
    return [COLOUR, importlib.import_module(".late", __package__).COLOUR]


handlers = {"colour": colour, "shed": shed}
"""
_EAR = """\
import json
from pathlib import Path

from goondan_tasks.extension_api import ExtensionApi


def register(api: ExtensionApi) -> None:
    def heard(event):
        with Path(__file__).parent.parent.parent.joinpath("heard").open("a") as file:
            file.write(json.dumps(event) + "\\n")

    api.events.on("swarmBundle.revisionChanged", heard)
"""
_NEWT = """\
import asyncio
from pathlib import Path


async def handle(ctx, event):
    if event.type == "swarmBundle.revisionChanged":
        ctx.workdir.joinpath("told").write_text(event.input["newRef"])
        return None
    told = []
    for until in event.input:
        async with ctx.step() as step:
            [result] = await step.run([{"id": "c", "name": "skin__colour", "args": {}}])
            told.append([result.output, [block["type"] for block in step.blocks]])
            ctx.workdir.joinpath(f"step-{step.index}").touch()
        while not Path(until).exists():
            await asyncio.sleep(0.01)
    outside = await ctx.call("skin__colour")
    return {"steps": told, "outside": outside.output}
"""


def colour(name: str) -> dict[str, str]:
    """Return the files of a revision in which everything has this colour."""
    return {"skin/colour.py": f"COLOUR = {name!r}\n", "skin/late.py": f"COLOUR = {name!r}\n"}


#: the bundle that they run
MEADOW = {
    "goondan.yaml": _YAML,
    "skin/__init__.py": _SKIN,
    "ear.py": _EAR,
    "newt.py": _NEWT,
    **colour("green"),
}


class Machines:
    """The remote with its ``author``'s clone, and the machines with their workers."""

    def __init__(
        self,
        place: Path,
        environment: Mapping[str, str] | None = None,
        *,
        files: Mapping[str, str] = MEADOW,
        workspace: str = WORKSPACE,
    ) -> None:
        self.place = place
        self.workspace = workspace
        self.author: GitBundle = make_bundle(place / "author", files=files)
        git(place, "clone", "--quiet", "--bare", str(self.author.root), str(self.remote))
        self.author.git("remote", "add", "origin", str(self.remote))
        self.stack = LocalStack(
            self.author.root,
            workers=0,
            environment={
                "GOONDAN_BUNDLE_REMOTE": "origin",
                "GOONDAN_LEASE_SECONDS": "2",
                "GOONDAN_LOG_LEVEL": "warning",
                **(environment or {}),
            },
        )

    def __enter__(self) -> "Machines":
        self.stack.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.__exit__(None, None, None)

    @property
    def client(self) -> Client:
        """A producer that has the author's clone."""
        return self.stack.client

    @property
    def remote(self) -> Path:
        """The repository that all share."""
        return self.place / "remote.git"

    @property
    def record(self) -> ActiveRevision:
        """What all agree on."""
        return ActiveRevision(self.client._redis, Keys(), self.workspace)

    @property
    def state(self) -> RevisionState:
        """How the record is now."""
        state = self.record.state()
        assert state is not None
        return state

    def clone(self, name: str) -> GitBundle:
        """Return a machine's clone, as the remote is when it is first asked for."""
        folder = self.place / name
        if not folder.exists():
            git(self.place, "clone", "--quiet", str(self.remote), str(folder))
        return GitBundle(folder)

    def cache(self, name: str) -> Path:
        """Return where a machine keeps its checkouts."""
        return self.place / f"cache-{name}"

    def start(self, name: str, *agents: str) -> Worker:
        """Start a worker on a machine and wait until it consumes."""
        stack, bundle = self.stack, self.clone(name)
        chosen = [argument for agent in agents for argument in ("--agent", agent)]
        log = self.place / f"worker-{name}-{len(stack.workers)}.log"
        environment = {
            **stack._worker_environment(),
            "GOONDAN_BUNDLE": str(bundle.folder),
            "GOONDAN_CACHE_DIR": str(self.cache(name)),
        }
        with log.open("wb") as output:
            command = [sys.executable, "-P", "-m", "goondan_tasks", "worker", *chosen]
            worker = stack._group.start(command, env=environment, output=output)
        stack._logs[worker.pid] = log
        stack._workers.append(worker)
        stack._wait_until_ready([worker])
        return worker

    def commit(self, files: Mapping[str, str]) -> str:
        """Commit and push a revision, and return its ref."""
        commit = self.author.commit(files)
        self.author.git("push", "--quiet", "origin", "main")
        return f"git:{commit}"

    def propose(self, ref: str, instance: str | None = None) -> None:
        """Propose a revision; as newt in ``instance``, if one is named."""
        agent = None if instance is None else "newt"
        self.record.propose(
            RevisionChange(
                new_ref=ref,
                changeset_id="cs-1-00000000",
                timestamp="2026-01-01T00:00:00.000Z",
                agent_name=agent,
                instance_key=instance,
            )
        )

    def switch(self, files: Mapping[str, str]) -> str:
        """Commit and propose a revision, wait until all workers have it, and return its ref."""
        ref = self.commit(files)
        self.propose(ref)
        wait_until(lambda: self.state.active == ref, show=lambda: (self.state, self.logs()))
        return ref

    def end_claim_of_dead(self, ref: str) -> None:
        """Let the claim on a load end now that its worker is dead; otherwise its lease would."""
        redis, claim = self.client._redis, Keys().revision_load(self.workspace, ref)
        assert 0 < redis.ttl(claim) <= LOAD_LEASE_SECONDS
        redis.delete(claim)

    def workdir(self, instance: str) -> Path:
        """Return the workdir of an instance."""
        return self.stack.state_root / "workspaces" / WORKSPACE / "instances" / instance / "workspace"

    def are_followed(self, ref: str, seconds: float = 90) -> None:
        """Wait until all workers say that they run a revision, and the producer's calls name it."""
        workers, producer = self.client.workers, self.client._active_refs
        wait_until(lambda: {worker.bundle_ref for worker in workers()} == {ref}, seconds, show=self.logs)
        wait_until(lambda: producer.of(self.workspace) == ref, seconds)

    def logs(self) -> str:
        """Return what all workers have written."""
        return "\n".join(self.stack.log(worker) for worker in self.stack.workers)


class Load:
    """Calls, a few at a time, without a break."""

    def __init__(self, client: Client, calls: Sequence[JsonObject]) -> None:
        self._client = client
        self._calls = calls
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.results: list[ToolCallResult] = []

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(120)

    @property
    def errors(self) -> list[ToolCallError | None]:
        """What went wrong with any of them."""
        return [result.error for result in self.results if result.status != "ok"]

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            self.results += [call.result(timeout=60) for call in self._client.submit_many(self._calls)]
