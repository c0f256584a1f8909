"""What the demo shows: handoffs and tool calls as they happen, the answer, errors, the trace."""

import json
import textwrap
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from rich.text import Text

from goondan_tasks.cli.demo_following import News
from goondan_tasks.cli.output import Screen, safe
from goondan_tasks.cli.printable import on_one_line
from goondan_tasks.cli.trace_view import trace_text
from goondan_tasks.messages import JsonObject, ToolCallResult
from goondan_tasks.roster import WorkerRecord
from goondan_tasks.trace import Trace

#: it looks well where there is no terminal, too
WIDTH = 80
WHAT_WIDTH = 34

OUTSIDE = "you"

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


class DemoScreen:
    """Writes to a terminal in colour; anywhere else plain lines."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def say(self, text: str | Text) -> None:
        """Write a line."""
        self._screen.print(safe(text), soft_wrap=True)

    def chapter(self, title: str) -> None:
        """Write a headline."""
        self.say(Text(f"\n{title}", style="bold"))

    def started(self, workers: Iterable[WorkerRecord], seconds: float) -> None:
        """Say which workers there are."""
        for worker in workers:
            self.say(f"  {', '.join(worker.agents):<10} process {worker.pid}")
        self.say(f"They take work after {seconds:.1f} s.")

    def waiting(self, what: str) -> AbstractContextManager[object]:
        """Show on a terminal what is waited for."""
        return self._screen.status(what)

    def asked(self, agent: str, task: str) -> None:
        """Show what the swarm is asked for."""
        self._say_wrapped(f"To the {agent}: {task}", "  ")

    def news(self, news: News) -> None:
        """Show that work was handed over, that it came back, or how a tool call has ended."""
        node, asker = news.node, news.asker or OUTSIDE
        is_call = node.kind == "call"
        if news.result is None:
            if not is_call:
                self._line(node.depth, Text(f"{asker} → {node.agent}", style="bold cyan"))
            return
        what = Text(node.tool) if is_call else Text(f"{asker} ← {node.agent}", style="bold cyan")
        outcome = _outcome(news.result, node.tool if is_call else node.agent)
        self._line(node.depth, what, f"{news.result.meta.duration_ms or 0:.0f} ms", outcome)

    def answer(self, answer: JsonObject) -> None:
        """Show what the swarm has answered."""
        self._say_wrapped(str(answer["summary"]), "  ")
        self._say_wrapped(f"It counts its own words: {json.dumps(answer['output'])}", "  ")

    def mistake(self, agent: str, tool: str, args: JsonObject, result: ToolCallResult) -> None:
        """Show a call and the error that it was answered with."""
        self.say(f"  {agent}  {tool} {json.dumps(args)}")
        if result.error is not None:
            self.say(Text(f"    {result.error.code}", style="red"))
            self._say_wrapped(result.error.message, "    ")
            self._say_wrapped(f"What to do: {result.error.suggestion}", "    ")

    def trace(self, trace: Trace) -> None:
        """Draw a trace."""
        width = self._screen.width if self._screen.is_terminal else WIDTH
        self._screen.print(trace_text(trace, width=width, limit=len(trace.nodes)), soft_wrap=True)

    def summary(self, report: JsonObject) -> None:
        """Show what it came to."""
        nodes, seconds = report["traces"][0]["nodes"], report["seconds"]
        handoffs = sum(node["kind"] != "call" for node in nodes)
        self.say(
            f"\nHandoffs: {handoffs}, tool calls: {len(nodes) - handoffs}, all ok. "
            f"Mistakes: {len(report['errors'])}, each with its error.\n"
            f"Started in {seconds['start']} s, at work for {seconds['work']} s, "
            f"stopped in {seconds['stop']} s.\nNothing is left running."
        )

    def _line(self, depth: int, what: Text, duration: str = "", outcome: Text | None = None) -> None:
        line = Text("  " * (depth + 1)).append_text(what)
        if outcome is not None:
            line.pad_right(max(1, WHAT_WIDTH - line.cell_len))
            line.append(f"{duration:>8}  ").append_text(outcome)
        line.truncate(WIDTH, overflow="ellipsis")
        self.say(line)

    def _say_wrapped(self, text: str, indent: str) -> None:
        self.say(textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent))


def _outcome(result: ToolCallResult, about: str) -> Text:
    if result.error is not None:
        return Text(result.error.code, style="red")
    gist = on_one_line(_GISTS.get(about, str)(result.output))
    return Text().append("ok", style="green").append(f"  {gist}")
