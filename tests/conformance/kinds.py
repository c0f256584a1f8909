"""The kinds of calls, the outcomes that each may have, and a bundle in which each cell has a tool of its own.

A cell's tool, for an event its agent, is used by no other cell, so counters and log lines name the cell.
"""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from goondan_tasks.contract.names import DELEGATE_TOOL

HANDLERS = Path(__file__).parent / "handlers"

OUTCOMES = (
    "ok",
    "raises",
    "not-json",
    "too-large",
    "pending",
    "approved",
    "edited",
    "denied",
    "cancelled-before",
    "cancelled",
    "time-limit",
    "retry",
    "killed-before",
    "killed",
    "killed-again",
    "redis-away",
    "damaged",
    "drain",
)

#: what an export needs for its outcome
_POLICIES: Mapping[str, Mapping[str, Any]] = {
    "approved": {"requiresApproval": True},
    "edited": {"requiresApproval": True},
    "denied": {"requiresApproval": True},
    "time-limit": {"timeoutSeconds": 3},
    "killed-again": {"idempotent": True},
    "retry": {"idempotent": True, "retry": {"max": 2, "backoffSeconds": 0.05}},
}

#: the apiVersion of the older extension
OLDER = "agents.example.io/v1alpha1"

#: the instance that all calls share
INSTANCE = "table"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of call: where its handler is, and what its tool says of it."""

    name: str
    entry: str = "plain.py"
    policy: Mapping[str, Any] = field(default_factory=dict)
    extensions: tuple[str, ...] = ()
    #: how long the handler works before it does what it is there for, in seconds
    pause: float = 0.0
    #: whether workers run its calls by a plan, which they make when they know the tool and the instance
    has_plan: bool = False

    @property
    def is_event(self) -> bool:
        return self.name == "event"

    @property
    def has_middleware(self) -> bool:
        return "middleware" in self.name


KINDS = (
    Kind("sync", has_plan=True),
    Kind("slow", pause=0.02, has_plan=True),
    Kind("async", "on_loop.py", has_plan=True),
    Kind("middleware", extensions=("Extension/around",)),
    Kind("plain-middleware", extensions=("Extension/layer",), has_plan=True),
    Kind("older-middleware", extensions=("Extension/older",), has_plan=True),
    Kind("listened-to", extensions=("Extension/listener",), has_plan=True),
    Kind("limited", policy={"maxConcurrency": 1}),
    Kind("isolated", policy={"isolation": "process"}, has_plan=True),
    Kind("javascript", "tools.mjs", has_plan=True),
    Kind("event", "work.py"),
    Kind("step", has_plan=True),
)

_NO_EXPORT = "an event has no export that could say so"
#: the cells that cannot exist, and why
IMPOSSIBLE = {
    ("event", "pending"): "the context of an agent has no `pending`: its answer is final",
    ("event", "approved"): _NO_EXPORT,
    ("event", "edited"): _NO_EXPORT,
    ("event", "denied"): _NO_EXPORT,
    ("event", "retry"): _NO_EXPORT,
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of call with one outcome."""

    kind: Kind
    outcome: str

    @property
    def name(self) -> str:
        return f"{self.kind.name}-{self.outcome}"

    @property
    def is_warmed_up(self) -> bool:
        """Whether a worker must have run a call of its tool before; a call to be approved has no plan."""
        return self.kind.has_plan and "requiresApproval" not in _POLICIES.get(self.outcome, {})

    @property
    def agent(self) -> str:
        return self.name if self.kind.is_event else self.kind.name

    @property
    def tool(self) -> str:
        return DELEGATE_TOOL if self.kind.is_event else f"{self.kind.name}__{self.outcome}"


ALL = [Cell(kind, outcome) for kind in KINDS for outcome in OUTCOMES]
#: the outcomes that need workers to die or stop, or a silent Redis
HARMFUL = ("killed-before", "killed", "killed-again", "redis-away", "drain")
CELLS = [cell for cell in ALL if (cell.kind.name, cell.outcome) not in IMPOSSIBLE]


def write_bundle(folder: Path) -> Path:
    """Write the bundle, and return its folder."""
    shutil.copytree(HANDLERS, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    exports = [*OUTCOMES]
    for name, function in (("plain", "run"), ("on_loop", "run_on_loop")):
        text = f"from .work import {function}\n\nhandlers = dict.fromkeys({exports!r}, {function})\n"
        (folder / f"{name}.py").write_text(text)
    named = f"Object.fromEntries({exports!r}.map((name) => [name, run]))"
    (folder / "tools.mjs").write_text(
        f"import {{ run }} from './work.mjs';\n\nexport const handlers = {named};\n"
    )
    (folder / "goondan.yaml").write_text(yaml.safe_dump_all(_documents(), sort_keys=False))
    return folder


def _documents() -> Iterator[dict[str, Any]]:
    agents = [*_agents()]
    names = [f"Agent/{agent['metadata']['name']}" for agent in agents]
    yield _resource("Package", "kinds-of-calls")
    yield _resource("Swarm", "default", entryAgent=names[0], agents=names)
    for extension in ("around", "layer", "listener"):
        yield _resource("Extension", extension, entry=f"./{extension}.py")
    yield {**_resource("Extension", "older", entry="./older.py", runtime="python"), "apiVersion": OLDER}
    arm = {"name": "hold-marks", "parameters": {"type": "object"}}
    yield _resource("Tool", "arm", entry="./arm.py", exports=[arm])
    yield from agents
    for kind in KINDS:
        if not kind.is_event:
            exports = [_export(kind, outcome) for outcome in OUTCOMES]
            yield _resource("Tool", kind.name, entry=f"./{kind.entry}", exports=exports)


def _agents() -> Iterator[dict[str, Any]]:
    for kind in KINDS:
        if kind.is_event:
            for cell in CELLS:
                if cell.kind is kind:
                    policy = _POLICIES.get(cell.outcome, {})
                    spec = {name: policy[name] for name in ("idempotent",) if name in policy}
                    yield _resource("Agent", cell.agent, entry=f"./{kind.entry}", **spec)
        else:
            tools = [f"Tool/{kind.name}", "Tool/arm"]
            yield _resource("Agent", kind.name, tools=tools, extensions=list(kind.extensions))


def _export(kind: Kind, outcome: str) -> dict[str, Any]:
    parameters = {"name": outcome, "parameters": {"type": "object"}}
    return {**parameters, **kind.policy, **_POLICIES.get(outcome, {})}


def _resource(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "goondan.ai/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
