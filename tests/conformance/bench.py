"""A stack on which calls of all kinds are brought to their outcomes, those of one outcome side by side."""

import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from redis import Redis

from goondan_tasks.client import PendingCall, Step
from goondan_tasks.contract.errors import CallClosedError, CallNotFoundError, WaitTimeout
from goondan_tasks.contract.messages import AgentEvent, ToolCallResult
from goondan_tasks.contract.names import call_identity
from goondan_tasks.testing import LocalStack
from tests.conformance.kinds import INSTANCE, Cell, Kind
from tests.waiting import wait_until

PATIENCE = 60.0
#: more than the workers keep in a result
LARGE = 300_000
#: an event's time limit, which includes its time in the mailbox
EVENT_SECONDS = 6.0
#: for how long an overwritten record stays
OVERWRITTEN_SECONDS = 600
#: longer than the lease of a call
OUTAGE_SECONDS = 2.5
TURN = "turn-of-the-table"

Worker = subprocess.Popen[bytes]

#: what the handlers do, by outcome; by default they return
ACTS = {
    "raises": "fail",
    "edited": "fail",  # and returns with the edited arguments
    "not-json": "spoil",
    "too-large": "flood",
    "pending": "suspend",
    "cancelled": "hold",
    "time-limit": "hold",
    "retry": "fail-once",
    "killed": "hold",
    "killed-again": "hold",
    "redis-away": "hold",
    "damaged": "hold",
    "drain": "hold",
}
#: what a handler that ends within milliseconds does itself while the others are held
SHORT_ACTS = {
    "cancelled": "cancel",
    "killed": "kill",
    "redis-away": "freeze",
    "damaged": "damage",
    "drain": "terminate",
}
#: the handlers that need connections of their own
CONNECTED = {"sync-cancelled", "sync-damaged"}


@dataclass(slots=True)
class Submitted:
    """A call of one cell, and what its producer has got of it."""

    cell: Cell
    call: PendingCall
    #: the interim result of a pending call
    interim: ToolCallResult | None = None
    result: ToolCallResult | None = None
    error: CallNotFoundError | WaitTimeout | None = None
    #: the events about the completion of a pending call
    told: list[AgentEvent] = field(default_factory=list)


class Bench:
    """Submits calls, and does to them and their workers what the outcomes ask for."""

    def __init__(self, stack: LocalStack, cells: Sequence[Cell], folder: Path) -> None:
        self.stack = stack
        self.cells = cells
        self.client = stack.client
        self.redis: Redis = stack.client._redis
        self.folder = folder
        self.log = folder / "begun.log"
        self.log.touch()
        self.workers: list[Worker] = []
        self.submitted: dict[str, Submitted] = {}
        #: how often a tool was called before, by agent and tool
        self.warmed_up = Counter[tuple[str, str]]()
        self._steps: list[Step] = []

    def start_worker(self) -> Worker:
        """Start a worker, and let it run a call of each tool that it can have a plan for."""
        worker = self.stack.start_worker(concurrency=64)
        self.workers.append(worker)
        args = {"log": str(self.folder / "warm.log"), "cell": "warm", "pause": 0}
        cells = [cell for cell in self.cells if cell.is_warmed_up]
        tools = {(cell.agent, cell.tool) for cell in cells}
        warm = [
            self.client.submit(cell.agent, cell.tool, {**args, "does": does}, instance_key=INSTANCE)
            for cell in cells
            for does in ["prepare" if cell.name in CONNECTED else "return"]
        ]
        assert {call.result(PATIENCE).status for call in warm} == {"ok"}
        [process] = [one.row for one in self.client.workers() if one.pid == worker.pid]
        wait_until(lambda: tools <= self._counted(process), PATIENCE)
        self.warmed_up.update(tools)
        if not self._steps:
            self._steps.append(self.client.turn("step", INSTANCE, turn_id=TURN).step(timeout=PATIENCE))
        return worker

    def _counted(self, process: str) -> set[tuple[str, str]]:
        """Return the tools that the metrics of a worker have."""
        counts = self.client.call_counts().workers
        return {(one.agent, one.tool) for each in counts if each.process == process for one in each.tools}

    def begun(self, name: str) -> int:
        """Return how often a handler, by its cell, or a middleware has begun."""
        return self.log.read_text().split().count(name)

    def gate(self, outcome: str) -> Path:
        """Return the file for which held handlers wait."""
        return self.folder / f"{outcome}.gate"

    def submit(self, outcome: str, only: Callable[[Kind], bool] = lambda _: True) -> list[Submitted]:
        """Submit one call of each kind."""
        cells = [cell for cell in self.cells if cell.outcome == outcome and only(cell.kind)]
        new = [Submitted(cell, self._submit(cell)) for cell in cells]
        self.submitted |= {one.cell.name: one for one in new}
        return new

    def submit_held(self, outcome: str) -> list[Submitted]:
        """Submit calls whose handlers are held, and last the one that acts by itself; wait for all."""
        held = self.submit(outcome, lambda kind: kind.name != "sync")
        hope(lambda: all(one.call.progress() for one in held))
        short = self.submit(outcome, lambda kind: kind.name == "sync")
        hope(lambda: all(self.begun(one.cell.name) for one in short))
        return held + short

    def await_all(self, calls: Iterable[Submitted]) -> None:
        """Wait for the final results, for all of them together as long as for one."""
        end = monotonic() + PATIENCE
        for one in calls:
            try:
                one.result = one.call.result(max(0.0, end - monotonic()), wait_pending=True)
            except (CallNotFoundError, WaitTimeout) as error:
                one.error = error

    def _submit(self, cell: Cell) -> PendingCall:
        names = (cell.agent, INSTANCE, TURN, cell.outcome)
        is_short = cell.kind.name == "sync" and cell.outcome in SHORT_ACTS
        args = {
            "cell": cell.name,
            "does": (SHORT_ACTS if is_short else ACTS).get(cell.outcome, "return"),
            "log": str(self.log),
            "gate": str(self.gate(cell.outcome)),
            "pause": cell.kind.pause,
            "size": LARGE,
            "id": call_identity(*names),
        }
        if cell.outcome == "redis-away":
            args["process"] = self.stack.redis.process.pid
        if cell.kind.is_event:
            limit = EVENT_SECONDS if cell.outcome == "time-limit" else PATIENCE
            return self.client.ask(cell.agent, args, timeout=limit, instance_key=INSTANCE)[1]
        if cell.kind.name == "step":
            asked = {"id": cell.outcome, "name": cell.tool, "args": args}
            return self._steps[0].submit([asked], PATIENCE, None)[1][0]
        return self.client.submit(
            cell.agent, cell.tool, args, instance_key=INSTANCE, turn_id=TURN, tool_call_id=cell.outcome
        )


def hope(condition: Callable[[], object]) -> None:
    """Wait until all is as it should be; a cell of which that is not true says so later, and no other."""
    with suppress(AssertionError):
        wait_until(condition, PATIENCE)


# Outcomes that need nothing but a worker.


def bring_calm_outcomes(bench: Bench, worker: Worker) -> None:
    """Bring about all outcomes in which no process is harmed."""
    cancel_before(bench, worker)
    late = bench.submit("time-limit")
    calls = [one for name in ("ok", "raises", "not-json", "too-large", "retry") for one in bench.submit(name)]
    suspended = {name: bench.submit(name) for name in ("pending", "approved", "edited", "denied")}
    cancelled, damaged = bench.submit_held("cancelled"), bench.submit_held("damaged")
    decide(bench, suspended)
    for one in cancelled:
        if one.cell.kind.name != "sync":
            cancel(one)
    for one in damaged:
        bench.redis.set(f"goondan:call:{one.call.id}", "overwritten", ex=OVERWRITTEN_SECONDS)
    bench.gate("damaged").touch()
    bench.await_all([*calls, *late, *cancelled, *damaged])
    bench.gate("time-limit").touch()
    bench.gate("cancelled").touch()


def freeze(worker: Worker) -> None:
    """Stop a worker, and wait until it has stopped."""
    os.kill(worker.pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{worker.pid}/task")
    wait_until(lambda: all(state_of(task) == "T" for task in tasks.iterdir()))


def state_of(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def cancel(submitted: Submitted) -> None:
    """Cancel a call; the cell says so if that comes too late."""
    with suppress(CallClosedError):
        submitted.call.cancel()


def cancel_before(bench: Bench, worker: Worker) -> None:
    """Cancel calls before their worker, which is frozen, can see them."""
    freeze(worker)
    calls = bench.submit("cancelled-before")
    for one in calls:
        cancel(one)
    bench.await_all(calls)
    os.kill(worker.pid, signal.SIGCONT)


def decide(bench: Bench, suspended: dict[str, list[Submitted]]) -> None:
    """Complete pending calls, approve and deny others, and receive the events about their ends."""
    client = bench.client
    for outcome, calls in suspended.items():
        for one in calls:
            with suppress(WaitTimeout):
                one.interim = one.call.result(PATIENCE)
            if outcome == "pending":
                client.resolve(one.call.id, {"resolved": one.cell.name})
            elif outcome == "approved":
                client.approve(one.call.id, by="ann")
            elif outcome == "edited":
                asked = client.record(one.call.id).call.args
                client.approve(one.call.id, by="ann", args={**asked, "does": "return"})
            else:
                client.deny(one.call.id, "not today", by="bob")
        bench.await_all(calls)
    ended = {one.call.id: one for calls in suspended.values() for one in calls if one.result is not None}
    for one in [*ended.values()]:
        received = client.receive(one.cell.agent, INSTANCE, PATIENCE)
        if received is not None:
            ended[received.event.input["id"]].told.append(received.event)
            client.reply(received)


# Outcomes with harm to workers or Redis.


def bring_harmful_outcomes(bench: Bench, worker: Worker) -> None:
    """Bring about the outcomes in which workers die or stop, and Redis is silent."""
    kill_before(bench, worker)
    worker = bench.start_worker()
    bench.await_all(of(bench, "killed-before"))
    be_silent(bench)
    drain(bench, worker)
    worker = bench.start_worker()
    killed = bench.submit_held("killed-again") + bench.submit_held("killed")
    worker.wait(PATIENCE)
    bench.gate("killed-again").touch()
    bench.start_worker()
    bench.await_all(killed)


def of(bench: Bench, outcome: str) -> list[Submitted]:
    return [one for one in bench.submitted.values() if one.cell.outcome == outcome]


def kill_before(bench: Bench, worker: Worker) -> None:
    """Kill a worker that has claimed calls, but cannot mark any of them as started."""
    assert bench.client.call("sync", "arm__hold-marks", timeout=PATIENCE).status == "ok"
    freeze(worker)  # so that it takes all of them at once
    calls = bench.submit("killed-before")
    os.kill(worker.pid, signal.SIGCONT)
    hope(lambda: all(one.call.status() == "running" for one in calls))
    worker.kill()
    worker.wait(PATIENCE)


def be_silent(bench: Bench) -> None:
    """Let handlers end while Redis does not answer, for longer than their leases."""
    calls = bench.submit_held("redis-away")
    bench.gate("redis-away").touch()
    threading.Event().wait(OUTAGE_SECONDS)
    os.kill(bench.stack.redis.process.pid, signal.SIGCONT)
    bench.await_all(calls)


def drain(bench: Bench, worker: Worker) -> None:
    """Ask a worker to stop while its handlers run."""
    calls = bench.submit_held("drain")
    wait_until(lambda: "worker.draining" in bench.stack.log(worker), PATIENCE)
    bench.gate("drain").touch()
    assert worker.wait(PATIENCE) == 0
    bench.await_all(calls)
