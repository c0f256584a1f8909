"""What the demo shows: each call when it ends, then trace and workers."""

import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from rich.table import Table
from rich.text import Text

from broker_config.queues import call_queue
from goondan_tasks.cli.output import Screen, make_table, safe
from goondan_tasks.cli.printable import printable
from goondan_tasks.messages import JsonObject, ToolCallResult, epoch_milliseconds
from goondan_tasks.roster import WorkerRecord

BAR_WIDTH = 32
GIST_WIDTH = 60

#: what a person wants to know of each tool's output
_GISTS: dict[str, Callable[[Any], str]] = {
    "plan__outline": lambda out: f"steps: {len(out['steps'])}",
    "python-project__scaffold": lambda out: " ".join(out["files"]),
    "python-project__run-tests": lambda out: f"tests: {out['ran']}, failed: {out['failures']}",
    "file-system__write": lambda out: f"{_in_workdir(out['path'])}, {out['size']} bytes",
    "bash__exec": lambda out: f"exit {out['exitCode']}: {_last_line(out['stdout'] or out['stderr'])}",
    "http-fetch__get": lambda out: f"{out['status']}, {len(out['body'])} characters",
    "json-query__query": lambda out: f"values: {len(out['value'])}",
    "review__style": lambda out: f"files: {out['files']}, findings: {out['count']}",
}


class DemoScreen:
    """Writes to a terminal in colour; anywhere else plain lines."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._labels: dict[str | None, str] = {}

    def say(self, text: str | Text) -> None:
        """Write a line."""
        self._screen.print(safe(text), soft_wrap=True)

    def chapter(self, title: str) -> None:
        """Write a headline."""
        self.say(Text(f"\n{title}", style="bold"))

    def started(self, workers: Iterable[WorkerRecord], seconds: float) -> None:
        """Say which workers there are."""
        for number, worker in enumerate(workers, start=1):
            self._labels[worker.name] = f"worker {number}"
            agents = ", ".join(worker.agents)
            self.say(f"worker {number} is {worker.name} (pid {worker.pid}): {agents}")
        self.say(f"They take calls after {seconds:.1f} s.")

    def waiting(self, what: str) -> AbstractContextManager[object]:
        """Show on a terminal what is waited for."""
        return self._screen.status(what)

    def result(self, result: ToolCallResult) -> None:
        """Show a call: tool, queue, worker, duration, and what came of it."""
        meta = result.meta
        place = f"{call_queue(meta.agent_name):<15} {self._label(result):<9}"
        duration = "not run" if meta.duration_ms is None else f"{meta.duration_ms:.1f} ms"
        line = Text(f"  {result.tool_name:<26} {place} {duration:>10}  ")
        self._screen.print(line.append_text(_outcome(result)), no_wrap=True, overflow="ellipsis")
        if result.error is not None:
            error = json.dumps(result.error.to_wire(), indent=2, ensure_ascii=False)
            self.say("\n".join(f"      {row}" for row in error.splitlines()))

    def summary(self, results: list[ToolCallResult], report: JsonObject) -> None:
        """Show the trace, the workers' shares and the times."""
        self.chapter("The trace: when each call waited (·) and ran (█)")
        for line in _trace(results, self._label):
            self.say(line)
        self.chapter("The workers")
        self._screen.print(self._shares(results))
        counts, seconds = report["counts"], report["seconds"]
        errors = f"{counts['error']} answered with an error on purpose"
        self.say(
            f"\n{len(results)} calls: {counts['ok']} ok, {errors}.\n"
            f"Started in {seconds['start']} s, called for {seconds['calls']} s, "
            f"stopped in {seconds['stop']} s; nothing is left running."
        )

    def _label(self, result: ToolCallResult) -> str:
        return self._labels.get(result.meta.worker, result.meta.worker or "no worker")

    def _shares(self, results: list[ToolCallResult]) -> Table:
        rows = []
        for label in sorted({self._label(result) for result in results}):
            own = [result for result in results if self._label(result) == label]
            ok = sum(result.status == "ok" for result in own)
            busy = round(sum(result.meta.duration_ms or 0 for result in own))
            rows.append([label, len(own), ok, len(own) - ok, busy])
        return make_table(["worker", "calls", "ok", "error", "busy ms"], rows)


def _outcome(result: ToolCallResult) -> Text:
    if result.error is not None:
        return Text(result.error.code, style="red")
    gist = printable(_GISTS.get(result.tool_name, str)(result.output))
    shown = gist if len(gist) <= GIST_WIDTH else f"{gist[: GIST_WIDTH - 1]}…"
    return Text("ok", style="green").append(f"  {shown}", style="none")


def _in_workdir(path: str) -> str:
    return path.rpartition("/workspace/")[2]


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.split("\n")) if line.strip()), "")


def _trace(results: list[ToolCallResult], label: Callable[[ToolCallResult], str]) -> list[str]:
    """Draw the calls on one time axis, in order of submission."""
    times = sorted((_times(result) for result in results), key=lambda entry: entry[:2])
    first, last = times[0][0], max(end for _, _, end, _ in times)
    scale = BAR_WIDTH / max(1, last - first)
    rows = []
    for queued, started, ended, result in times:
        before = min(BAR_WIDTH - 1, round((queued - first) * scale))
        wait = round((started - queued) * scale)
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
