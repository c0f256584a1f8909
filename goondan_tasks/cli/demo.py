"""``goondan demo``: the example swarm at work on a private Redis, with a worker for each agent.

Its agents think; by default a script answers in place of a model. The demo shows one task for the swarm as it
proceeds, a few mistakes, and the trace of the task.
"""

import contextlib
import importlib.util
import json
import shutil
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.text import Text

from goondan_tasks.bundle.resource import API_VERSION
from goondan_tasks.cli.bundles import model_spec
from goondan_tasks.cli.options import flag
from goondan_tasks.cli.output import (
    INTERRUPTED,
    Output,
    Screen,
)
from goondan_tasks.cli.trace import trace_text
from goondan_tasks.client import Client
from goondan_tasks.contract.errors import ConfigError, GoondanError, WaitTimeout
from goondan_tasks.contract.messages import JsonObject, ToolCallResult
from goondan_tasks.contract.names import MODEL_TOOLS
from goondan_tasks.contract.wording import on_one_line
from goondan_tasks.history.trace import TraceNode
from goondan_tasks.testing import LocalStack

CONCURRENCY = 4
TIMEOUT_SECONDS = 45.0
LOOK_SECONDS = 0.05

#: the widths of the output and of its first column, without a terminal
WIDTH, WHAT_WIDTH = 80, 34

OUTSIDE = "you"
TASK = "Write a module that counts the words of files. Write its test and run it. Then review the style."
#: names the model that the swarm thinks with
MODEL_VARIABLE = "GOONDAN_DEMO_MODEL"

#: calls that must fail: agent, tool, arguments, and error code
MISTAKES = (
    ("planner", "bash__exec", {"command": "ls"}, "E_TOOL_NOT_IN_CATALOG"),
    ("coder", "bash__exec", {"cmd": "ls"}, "E_TOOL_INVALID_ARGS"),
    ("coder", "file-system__read", {"path": "../../../../etc/passwd"}, "E_PATH_OUTSIDE_WORKDIR"),
)

#: the gist of each tool's output, and of each agent's answer
_GISTS: dict[str, Callable[[Any], str]] = {
    "plan__outline": lambda out: f"steps: {len(out['steps'])}",
    "python-project__scaffold": lambda out: " ".join(out["files"]),
    "python-project__run-tests": lambda out: f"tests: {out['ran']}, failed: {out['failures']}",
    "file-system__write": lambda out: f"{out['path'].rpartition('/')[2]}, {out['size']} bytes",
    "bash__exec": lambda out: f"exit {out['exitCode']}",
    "review__style": lambda out: f"findings: {out['count']}",
    "agents__request": lambda out: f"answered by {out['target']}",
    "reviewer": lambda out: "; ".join(finding["message"] for finding in out["findings"]) or "nothing to say",
    "coder": lambda out: f"{out['module']}, tests: {out['tests']}",
}


class UnexpectedResult(GoondanError):  # noqa: N818 - it is the result that is unexpected
    """Part of the demo did not end as it should."""

    suggestion = "Run `goondan doctor`; if it finds nothing, this is a bug: please report it."


def demo(
    as_json: Annotated[bool, flag("Print one JSON document on stdout.", "--json")] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model to think with: PROVIDER:MODEL, or URL#MODEL of a server with OpenAI's chat "
            "completions. By default a script answers.",
            envvar=MODEL_VARIABLE,
            metavar="MODEL",
        ),
    ] = None,
) -> None:
    """Show the example swarm at work: a private Redis, a worker for each agent, handoffs, their trace."""
    screen = Screen(stderr=as_json)
    try:
        report = _run(screen, model)
    except KeyboardInterrupt:
        screen.say("Stopped. Nothing is left running.")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        Output(as_json).document(report)


def _run(screen: Screen, model: str | None) -> JsonObject:
    began = time.monotonic()
    here = Path(__file__).parent
    # in the installed package, or in the source tree
    places = (root / "examples" / "coding-swarm" for root in (here.parent, here.parents[1]))
    example = next(place for place in places if place.is_dir())
    screen.say(f"Starting a private Redis, and a worker for each agent of\n{example} …")
    environment = {"GOONDAN_SWARM": "coding"}
    with (
        _model_spec(example, model, screen) as spec,
        DemoStack(example, spec, concurrency=CONCURRENCY, environment=environment, apart=True) as stack,
    ):
        started = time.monotonic()
        for worker in stack.client.workers():
            screen.say(f"  {', '.join(worker.agents):<10} process {worker.pid}")
        screen.say(f"They are ready after {started - began:.1f} s.")
        report = _story(stack.client, screen, is_scripted=model is None)
        ended = time.monotonic()
    durations = {"start": started - began, "work": ended - started, "stop": time.monotonic() - ended}
    seconds = {name: round(duration, 2) for name, duration in durations.items()}
    nodes = report["traces"][0]["nodes"]
    handoffs = sum(node["kind"] != "call" for node in nodes)
    asked = sum(node["tool"].startswith(MODEL_TOOLS) for node in nodes)
    screen.say(
        f"\nHandoffs: {handoffs}, requests to the model: {asked}, "
        f"tool calls: {len(nodes) - handoffs - asked}.\n"
        f"Mistakes: {len(report['errors'])}, each with its error.\n"
        f"Started in {seconds['start']} s, at work for {seconds['work']} s, "
        f"stopped in {seconds['stop']} s.\nNothing is left running."
    )
    return {**report, "seconds": seconds}


class DemoStack(LocalStack):
    """A stack with a temporary copy of the example, whose agents think with the given model."""

    def __init__(self, example: Path, model: JsonObject, **options: Any) -> None:
        super().__init__(example, **options)
        self._example, self._model = self.bundle, model

    def _open_directory(self, resources: contextlib.ExitStack) -> None:
        super()._open_directory(resources)
        self.bundle = Path(shutil.copytree(self._example, self._directory / self._example.name))
        named = {"apiVersion": API_VERSION, "kind": "Model", "metadata": {"name": "llm"}}
        model = self.bundle / "model.yaml"
        model.write_text(json.dumps({**named, "spec": self._model}), "utf-8")  # JSON is YAML


@contextlib.contextmanager
def _model_spec(example: Path, model: str | None, screen: Screen) -> Iterator[JsonObject]:
    """Yield the spec of the model that the agents think with; serve the script meanwhile."""
    if model is not None:
        screen.say(f"The agents think with {model}.")
        yield model_spec(model)
        return
    screen.say("The agents think; in place of a model, a script answers on loopback.")
    screen.say(f"For a real model set {MODEL_VARIABLE}=openai:… and its key, or a server's URL.")
    with _script(example / "scripted_model.py") as url:
        yield {"provider": "openai-chat", "model": "scripted", "baseUrl": url, "apiKey": {"value": "none"}}


@contextlib.contextmanager
def _script(file: Path) -> Iterator[str]:
    """Serve the example's script; yield its URL."""
    spec = importlib.util.spec_from_file_location("scripted_model", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with module.ScriptedModel(0) as server:
        threading.Thread(target=server.serve_forever, name="scripted-model", daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def _story(client: Client, screen: Screen, *, is_scripted: bool) -> JsonObject:
    """Give the example swarm its task, as a program outside of it would; return the report.

    Raises:
        UnexpectedResult: something did not end as it should.
    """
    instance_key = f"demo-{uuid.uuid4().hex[:4]}"
    _chapter(screen, "One request: planner, coder and reviewer hand the work to each other")
    call, pending = client.ask("planner", TASK, timeout=TIMEOUT_SECONDS, instance_key=instance_key)
    _wrapped(screen, f"To the planner: {TASK}", "  ")
    with screen.status("The swarm works"):
        for event in swarm_events(client, call.correlation_id):
            _show_event(screen, event)
    done, trace = pending.result(TIMEOUT_SECONDS), client.trace(call.correlation_id)
    _check(done.error is None, f"the swarm answered with an error: {done.error}")
    if is_scripted:  # a real model may do it in another way
        _check("2 tests pass" in done.output and "round 2" in done.output, "two rounds, two tests pass")
        _check(all(node.state == "ok" for node in trace.nodes), "every call and handoff succeeds")
        _check(
            {node.agent for node in trace.nodes} == {"planner", "coder", "reviewer"}, "all agents take part"
        )

    _chapter(screen, "The answer")
    _wrapped(screen, str(done.output), "  ")

    _chapter(screen, "Mistakes are answers too")
    errors = [_mistake(client, screen, instance_key, *mistake) for mistake in MISTAKES]

    _chapter(screen, "The trace of the task, as `goondan trace` draws it")
    width = screen.width if screen.is_terminal else WIDTH
    screen.say(trace_text(trace, width=width, limit=len(trace.nodes)))
    known = {"instanceKey": instance_key, "task": TASK, "answer": done.output, "usage": done.meta.usage or {}}
    return {**known, "errors": errors, "traces": [trace.to_wire()]}


def _mistake(
    client: Client, screen: Screen, instance_key: str, agent: str, tool: str, args: JsonObject, code: str
) -> JsonObject:
    """Make a call that must fail; show and return its error."""
    error = client.call(agent, tool, args, timeout=TIMEOUT_SECONDS, instance_key=instance_key).error
    if error is None or error.code != code:
        raise UnexpectedResult(f"{tool} should have answered {code}")
    screen.say(f"  {agent}  {tool} {json.dumps(args)}")
    screen.say(Text(f"    {error.code}", style="red"))
    _wrapped(screen, error.message, "    ")
    _wrapped(screen, f"What to do: {error.suggestion}", "    ")
    return error.to_wire()


def _chapter(screen: Screen, title: str) -> None:
    screen.say(Text(f"\n{title}", style="bold"))


def _wrapped(screen: Screen, text: str, indent: str) -> None:
    screen.say(textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent))


class SwarmEvent(NamedTuple):
    """A call or request was made, or with a result: it has ended."""

    node: TraceNode
    #: the agent that made it; ``None`` if it came from outside
    asker: str | None
    result: ToolCallResult | None = None

    @property
    def order(self) -> tuple[str, int]:
        """The sort key: by time; at the same moment an answer comes after the calls that it used."""
        if self.result is None:
            return self.node.queued_at, self.node.depth
        return self.node.finished_at or "", -self.node.depth


def swarm_events(client: Client, correlation_id: str) -> Iterator[SwarmEvent]:
    """Yield what happens in a request, in order of time, until it has ended."""
    pending = client.pending(correlation_id)
    seen: set[tuple[str, bool]] = set()
    has_ended = False
    while not has_ended:
        with contextlib.suppress(WaitTimeout):
            pending.result(LOOK_SECONDS)
            has_ended = True
        happened = [
            one for one in _events(client, correlation_id) if (one.node.id, one.result is None) not in seen
        ]
        seen.update((one.node.id, one.result is None) for one in happened)
        yield from sorted(happened, key=lambda one: one.order)


def _events(client: Client, correlation_id: str) -> Iterator[SwarmEvent]:
    path: list[TraceNode] = []
    for node in client.trace(correlation_id).nodes:
        del path[node.depth :]
        asker = path[-1].agent if path else None
        path.append(node)
        yield SwarmEvent(node, asker)
        if node.finished_at is not None:
            yield SwarmEvent(node, asker, client.pending(node.id).result())


def _show_event(screen: Screen, event: SwarmEvent) -> None:
    """Show a handoff, its answer, or how a tool call has ended."""
    node, result = event.node, event.result
    is_call = node.kind == "call"
    if result is None and is_call:
        return
    is_thought = node.tool.startswith(MODEL_TOOLS)
    what = f"{node.agent} thinks" if is_thought else node.tool if is_call else node.agent
    handoff = f"{event.asker or OUTSIDE} {'→' if result is None else '←'} {what}"
    line = Text("  " * (node.depth + 1)).append(what if is_call else handoff, "" if is_call else "bold cyan")
    if result is not None:
        line.pad_right(max(1, WHAT_WIDTH - line.cell_len))
        line.append(f"{f'{result.meta.duration_ms or 0:.0f} ms':>8}  ")
        if result.error is not None:
            line.append(result.error.code, style="red")
        else:
            gist = on_one_line(_gist(what, result.output, is_thought=is_thought))
            line.append("ok", style="green").append(f"  {gist}")
    line.truncate(WIDTH, overflow="ellipsis")
    screen.say(line)


def _gist(what: str, output: Any, *, is_thought: bool) -> str:
    if is_thought:
        names = [part["toolName"] for part in output["content"] if part["type"] == "tool-call"]
        return ", ".join(names) or "answers"
    try:
        return _GISTS.get(what, str)(output)
    except (LookupError, TypeError):  # a model may have called it in another way
        return str(output)


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise UnexpectedResult(what)
