"""What the demo shows: each call when it ends, then workers and trace."""

import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from broker_config.queues import call_queue
from goondan_tasks.messages import JsonObject, ToolCallResult, epoch_milliseconds
from goondan_tasks.roster import WorkerRecord

BAR_WIDTH = 32

#: what a person wants to know of each tool's output
_GISTS: dict[str, Callable[[Any], str]] = {
    "plan__outline": lambda out: f"{len(out['steps'])} steps",
    "python-project__scaffold": lambda out: " ".join(out["files"]),
    "python-project__run-tests": lambda out: f"{out['ran']} ran, {out['failures']} failed",
    "file-system__write": lambda out: f"{out['path']}, {out['size']} bytes",
    "bash__exec": lambda out: f"exit {out['exitCode']}: {_last_line(out['stdout'] or out['stderr'])}",
    "http-fetch__get": lambda out: f"{out['status']}, {len(out['body'])} characters",
    "json-query__query": lambda out: f"{len(out['value'])} values",
    "review__style": lambda out: f"{out['count']} findings in {out['files']} file",
}


class DemoScreen:
    """Writes to a terminal in colour; anywhere else plain lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._labels: dict[str | None, str] = {}

    def say(self, text: str) -> None:
        """Write a line as it is."""
        self._console.print(escape(text), soft_wrap=True)

    def chapter(self, title: str) -> None:
        """Write a headline."""
        self._console.print(f"\n[bold]{escape(title)}[/]", soft_wrap=True)

    def started(self, workers: Iterable[WorkerRecord], seconds: float) -> None:
        """Say which workers there are."""
        for number, worker in enumerate(workers, start=1):
            self._labels[worker.name] = f"worker {number}"
            agents = ", ".join(worker.agents)
            self.say(f"worker {number} is {worker.name} (pid {worker.pid}): {agents}")
        self.say(f"All consume after {seconds:.1f} s.")

    def waiting(self, what: str) -> AbstractContextManager[object]:
        """Show on a terminal what is waited for."""
        return self._console.status(escape(what))

    def result(self, result: ToolCallResult) -> None:
        """Show a call: tool, queue, worker, duration, and what came of it."""
        meta = result.meta
        place = f"{call_queue(meta.agent_name):<15} {self._label(result):<9}"
        line = f"  {result.tool_name:<26} {place} {meta.duration_ms or 0:>7.1f} ms  "
        self._console.print(f"{escape(line)}{_outcome(result)}", soft_wrap=True)
        if result.error is not None:
            error = json.dumps(result.error.to_wire(), indent=2, ensure_ascii=False)
            self._console.print(
                "\n".join(f"      {escape(row)}" for row in error.splitlines()), soft_wrap=True
            )

    def summary(self, results: list[ToolCallResult], report: JsonObject) -> None:
        """Show the trace, the workers' shares and the times."""
        self.chapter("The trace: when each call waited (·) and ran (█)")
        for line in _trace(results, self._label):
            self.say(line)
        self._console.print()
        self._console.print(self._shares(results))
        counts, seconds = report["counts"], report["seconds"]
        self.say(
            f"{len(results)} calls: {counts['ok']} ok, {counts['error']} answered with an error on purpose. "
            f"Started in {seconds['start']} s, called for {seconds['calls']} s, "
            f"stopped in {seconds['stop']} s; nothing is left running."
        )

    def _label(self, result: ToolCallResult) -> str:
        return self._labels.get(result.meta.worker, result.meta.worker or "no worker")

    def _shares(self, results: list[ToolCallResult]) -> Table:
        table = Table("worker", "calls", "ok", "error", "busy")
        for label in sorted({self._label(result) for result in results}):
            own = [result for result in results if self._label(result) == label]
            ok = sum(result.status == "ok" for result in own)
            busy = sum(result.meta.duration_ms or 0 for result in own)
            table.add_row(label, str(len(own)), str(ok), str(len(own) - ok), f"{busy:.0f} ms")
        return table


def _outcome(result: ToolCallResult) -> str:
    if result.error is not None:
        return f"[red]{escape(result.error.code)}[/]"
    gist = _GISTS.get(result.tool_name, str)(result.output)
    return f"[green]ok[/]  {escape(gist)}"


def _last_line(text: str) -> str:
    lines = text.split("\n")
    return next((line for line in reversed(lines) if line.strip()), "")


def _trace(results: list[ToolCallResult], label: Callable[[ToolCallResult], str]) -> list[str]:
    """Draw the calls on one time axis, in order of submission."""
    times = sorted((_times(result) for result in results), key=lambda entry: entry[:2])
    first, last = times[0][0], max(end for _, _, end, _ in times)
    scale = BAR_WIDTH / max(1, last - first)
    rows = []
    for queued, started, ended, result in times:
        before, wait = round((queued - first) * scale), round((started - queued) * scale)
        run = max(1, round((ended - started) * scale))
        bar = (" " * before + "·" * wait + "█" * run)[:BAR_WIDTH]
        rows.append(f"  {queued - first:>6} ms  {bar:<{BAR_WIDTH}}  {label(result):<9} {result.tool_name}")
    return rows


def _times(result: ToolCallResult) -> tuple[int, int, int, ToolCallResult]:
    """Return when a call was queued, started and finished; one that never started ran for no time."""
    finished = epoch_milliseconds(result.meta.finished_at or "")
    queued = epoch_milliseconds(result.meta.queued_at or "")
    started = epoch_milliseconds(result.meta.started_at) if result.meta.started_at else finished
    return queued, started, finished, result
