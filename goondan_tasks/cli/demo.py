"""``goondan demo``: the example swarm at work, on a Redis and workers of its own, one for each agent.

One task for the swarm, a few mistakes, and the trace of it all; what happens is shown while it happens.
"""

import json
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from goondan_tasks.cli.output import INTERRUPTED, Output, Screen, on_one_line
from goondan_tasks.cli.trace import trace_text
from goondan_tasks.client import Client
from goondan_tasks.errors import GoondanError, WaitTimeout
from goondan_tasks.messages import JsonObject, ToolCallResult
from goondan_tasks.testing import LocalStack
from goondan_tasks.trace import Trace, TraceNode

CONCURRENCY = 4
TIMEOUT_SECONDS = 45.0
LOOK_SECONDS = 0.05

#: it looks well where there is no terminal, too
WIDTH, WHAT_WIDTH = 80, 34

OUTSIDE = "you"
TASK = "Write a module that counts the words of files. Write its test and run it. Then review the style."
WITHOUT_A_MODEL = "Write a game of chess."

#: calls that must fail: agent, tool, arguments, and the code of the error
MISTAKES = (
    ("planner", "bash__exec", {"command": "ls"}, "E_TOOL_NOT_IN_CATALOG"),
    ("coder", "bash__exec", {"cmd": "ls"}, "E_TOOL_INVALID_ARGS"),
    ("coder", "file-system__read", {"path": "../../../../etc/passwd"}, "E_PATH_OUTSIDE_WORKDIR"),
)

#: what a person wants to know of each tool's output, and of each agent's answer
_GISTS: dict[str, Callable[[Any], str]] = {
    "plan__outline": lambda out: f"steps: {len(out['steps'])}",
    "python-project__scaffold": lambda out: " ".join(out["files"]),
    "python-project__run-tests": lambda out: f"tests: {out['ran']}, failed: {out['failures']}",
    "file-system__write": lambda out: f"{out['path'].rpartition('/')[2]}, {out['size']} bytes",
    "bash__exec": lambda out: f"exit {out['exitCode']}",
    "review__style": lambda out: f"findings: {out['count']}",
    "reviewer": lambda out: "; ".join(finding["message"] for finding in out["findings"]) or "nothing to say",
    "coder": lambda out: f"{out['module']}, tests: {out['tests']}",
    "planner": lambda out: f"{out['module']}, rounds: {out['rounds']}",
}


class UnexpectedResult(GoondanError):  # noqa: N818 - it is the result that is unexpected
    """Something in the demo did not end as it should."""

    suggestion = "Run `goondan doctor`; if nothing is wrong there, this is a defect: please report it."


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Show the example swarm at work: embedded Redis, a worker for each agent, handoffs, their trace."""
    screen = Screen(stderr=as_json)
    try:
        report = _run(screen)
    except KeyboardInterrupt:
        screen.say("Stopped; everything has ended.")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        Output(as_json).document(report)


def _run(screen: Screen) -> JsonObject:
    began = time.monotonic()
    bundle = _example_bundle()
    screen.say(f"Starting a private Redis, and a worker for each agent of\n{bundle} …")
    environment = {"GOONDAN_SWARM": "coding"}
    with LocalStack(bundle, concurrency=CONCURRENCY, environment=environment, apart=True) as stack:
        started = time.monotonic()
        for worker in stack.client.workers():
            screen.say(f"  {', '.join(worker.agents):<10} process {worker.pid}")
        screen.say(f"They take work after {started - began:.1f} s.")
        story = Story(stack.client, screen)
        story.tell()
        ended = time.monotonic()
    start, work, stop = started - began, ended - started, time.monotonic() - ended
    seconds = {"start": round(start, 2), "work": round(work, 2), "stop": round(stop, 2)}
    report = {**story.report(), "seconds": seconds}
    nodes = report["traces"][0]["nodes"]
    handoffs = sum(node["kind"] != "call" for node in nodes)
    screen.say(
        f"\nHandoffs: {handoffs}, tool calls: {len(nodes) - handoffs}, all ok. "
        f"Mistakes: {len(report['errors'])}, each with its error.\n"
        f"Started in {seconds['start']} s, at work for {seconds['work']} s, "
        f"stopped in {seconds['stop']} s.\nNothing is left running."
    )
    return report


def _example_bundle() -> Path:
    """Return where ``examples/coding-swarm`` is: inside the installed package, or in the source tree."""
    here = Path(__file__).parent
    installed = here.parent / "examples" / "coding-swarm"
    return installed if installed.is_dir() else here.parents[1] / "examples" / "coding-swarm"


class Story:
    """Asks the example swarm, as a program outside of it would, and checks what comes of it."""

    def __init__(self, client: Client, screen: Screen) -> None:
        self._client = client
        self._screen = screen
        self._instance_key = f"demo-{uuid.uuid4().hex[:4]}"
        self._answer: JsonObject = {}
        self._errors: list[JsonObject] = []
        self._traces: list[Trace] = []

    def tell(self) -> None:
        """Tell all of it.

        Raises:
            UnexpectedResult: something did not end as it should.
        """
        self._chapter("One request; planner, coder and reviewer hand the work to each other")
        done = self._request(TASK)
        _check(done.error is None, f"the swarm answered with an error: {done.error}")
        self._answer = done.output
        _check(self._answer["tests"] == 2 and self._answer["rounds"] == 2, "two rounds, and two tests pass")
        nodes = self._traces[0].nodes
        _check(all(node.state == "ok" for node in nodes), "every call and handoff ends well")
        _check({node.agent for node in nodes} == {"planner", "coder", "reviewer"}, "each agent has its part")

        self._chapter("The answer")
        self._wrapped(str(self._answer["summary"]), "  ")
        self._wrapped(f"It counts its own words: {json.dumps(self._answer['output'])}", "  ")

        self._chapter("Mistakes are answers too")
        for agent, tool, args, code in MISTAKES:
            self._mistake(agent, tool, args, code)

        self._chapter("So is what an agent cannot do: the coder's error reaches the one that asked")
        self._note_error(self._request(WITHOUT_A_MODEL), "E_AGENT_FAILED")

        self._chapter("The trace of the task, as `goondan trace` draws it")
        width = self._screen.width if self._screen.is_terminal else WIDTH
        self._screen.say(trace_text(self._traces[0], width=width, limit=len(nodes)))

    def report(self) -> JsonObject:
        """Sum up what has happened."""
        return {
            "instanceKey": self._instance_key,
            "task": TASK,
            "answer": self._answer,
            "errors": self._errors,
            "traces": [trace.to_wire() for trace in self._traces],
        }

    def _request(self, task: str) -> ToolCallResult:
        call, pending = self._client.ask(
            "planner", task, timeout=TIMEOUT_SECONDS, instance_key=self._instance_key
        )
        following = Following(self._client, call.correlation_id)
        self._wrapped(f"To the planner: {task}", "  ")
        with self._screen.status("The swarm works"):
            for news in following.news():
                _show_news(self._screen, news)
        self._traces.append(following.trace())
        return pending.result(TIMEOUT_SECONDS)

    def _mistake(self, agent: str, tool: str, args: JsonObject, code: str) -> None:
        """Make a call that must fail, and show the error that it is answered with."""
        result = self._client.call(
            agent, tool, args, timeout=TIMEOUT_SECONDS, instance_key=self._instance_key
        )
        self._screen.say(f"  {agent}  {tool} {json.dumps(args)}")
        if result.error is not None:
            self._screen.say(Text(f"    {result.error.code}", style="red"))
            self._wrapped(result.error.message, "    ")
            self._wrapped(f"What to do: {result.error.suggestion}", "    ")
        self._note_error(result, code)

    def _note_error(self, result: ToolCallResult, code: str) -> None:
        error = result.error
        _check(error is not None and error.code == code, f"{result.tool_name} should have answered {code}")
        if error is not None:
            self._errors.append(error.to_wire())

    def _chapter(self, title: str) -> None:
        self._screen.say(Text(f"\n{title}", style="bold"))

    def _wrapped(self, text: str, indent: str) -> None:
        self._screen.say(textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent))


@dataclass(frozen=True, slots=True)
class News:
    """A call or request was made; or, with a result, it has ended."""

    node: TraceNode
    #: the agent that made it; ``None`` if it came from outside
    asker: str | None
    result: ToolCallResult | None = None

    @property
    def order(self) -> tuple[str, int]:
        """When it happened; at the same moment an answer comes after what it rests on."""
        if self.result is None:
            return self.node.queued_at, self.node.depth
        return self.node.finished_at or "", -self.node.depth


class Following:
    """Looks at the trace of a request again and again, until the request has ended."""

    def __init__(self, client: Client, correlation_id: str) -> None:
        self._client = client
        self._correlation_id = correlation_id
        self._told: set[tuple[str, bool]] = set()

    def trace(self) -> Trace:
        """Return the trace as it stands."""
        return self._client.trace(self._correlation_id)

    def news(self) -> Iterator[News]:
        """Yield everything that happens, in order of time."""
        pending = self._client.pending(self._correlation_id)
        has_ended = False
        while not has_ended:
            try:
                has_ended = pending.result(LOOK_SECONDS) is not None
            except WaitTimeout:
                has_ended = False
            yield from sorted(self._new(), key=lambda news: news.order)

    def _new(self) -> Iterator[News]:
        path: list[TraceNode] = []
        for node in self.trace().nodes:
            del path[node.depth :]
            asker = path[-1].agent if path else None
            path.append(node)
            if self._is_new(node, has_ended=False):
                yield News(node, asker)
            if node.finished_at is not None and self._is_new(node, has_ended=True):
                yield News(node, asker, self._client.pending(node.id).result())

    def _is_new(self, node: TraceNode, *, has_ended: bool) -> bool:
        is_new = (node.id, has_ended) not in self._told
        self._told.add((node.id, has_ended))
        return is_new


def _show_news(screen: Screen, news: News) -> None:
    """Show that work was handed over, that it came back, or how a tool call has ended."""
    node, asker = news.node, news.asker or OUTSIDE
    is_call = node.kind == "call"
    if news.result is None and is_call:
        return
    arrow = "→" if news.result is None else "←"
    what = node.tool if is_call else node.agent
    shown = Text(what) if is_call else Text(f"{asker} {arrow} {what}", style="bold cyan")
    line = Text("  " * (node.depth + 1)).append_text(shown)
    if news.result is not None:
        line.pad_right(max(1, WHAT_WIDTH - line.cell_len))
        duration = f"{news.result.meta.duration_ms or 0:.0f} ms"
        line.append(f"{duration:>8}  ").append_text(
            _outcome(news.result, node.tool if is_call else node.agent)
        )
    line.truncate(WIDTH, overflow="ellipsis")
    screen.say(line)


def _outcome(result: ToolCallResult, about: str) -> Text:
    if result.error is not None:
        return Text(result.error.code, style="red")
    gist = on_one_line(_GISTS.get(about, str)(result.output))
    return Text().append("ok", style="green").append(f"  {gist}")


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise UnexpectedResult(what)
