"""What ordinary bundles add to a call: a log line, an error, a middleware, a limit, a Step."""

from dataclasses import dataclass, field
from typing import Any

from benchmarks.bench import Bench
from benchmarks.figures import Costs, Section, at_most
from benchmarks.lanes import Lane
from benchmarks.systems import ASYNC_LAYERED_QUEUE, GOONDAN, PLAIN_LAYERED_QUEUE, Shape
from benchmarks.workload import BATCH

INSTANCES = 50
CALLS_OF_A_STEP = 5

_BARE = "a bare call"

_TEXT = f"""\
A producer calls a tool in batches of {BATCH} and reads every result. Each row adds one thing that ordinary
bundles have; the limits are never reached. A Step has {CALLS_OF_A_STEP} calls, and opening it is counted.
Ratios are to the bare call of the same run."""


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that a bundle adds, and the ratio to a bare call that the project aims at."""

    name: str
    limit: float | None = None
    agent: str = "ordinary"
    tool: str = "ordinary__noop"
    #: what else the producer's order says
    order: dict[str, Any] = field(default_factory=dict)


ROWS = (
    Row(_BARE),
    Row(f"calls over {INSTANCES} instances", 1.2, order={"instances": INSTANCES}),
    Row("the handler logs a line", 1.4, tool="ordinary__logs"),
    Row("the handler reports progress", 1.6, tool="ordinary__reports"),
    Row("an async handler", 1.15, tool="ordinary__awaits"),
    Row("the handler raises", 1.6, tool="ordinary__fails", order={"status": "error"}),
    Row("a plain middleware", 1.15, "one-plain"),
    Row("three plain middlewares", 1.25, PLAIN_LAYERED_QUEUE, "bench__noop"),
    Row("an async middleware", 1.5, "one-async"),
    Row("three async middlewares", None, ASYNC_LAYERED_QUEUE, "bench__noop"),
    Row("the extension `logging`", 1.6, "with-logging"),
    Row("a listener of ended calls", 1.2, "with-listener"),
    Row("`idempotent` with retries", 1.1, tool="ordinary__retries"),
    Row("`maxConcurrency`", 1.5, tool="ordinary__at-once"),
    Row("`rateLimit`", 1.5, tool="ordinary__rated"),
    Row("`idempotencyKey`", 1.5, tool="ordinary__keyed"),
    Row(
        f"`serial`, over {INSTANCES} instances", 1.5, tool="ordinary__in-turn", order={"instances": INSTANCES}
    ),
    Row("calls of a Step", 2.5, order={"step": CALLS_OF_A_STEP}),
    Row("the same with a step middleware", 3.0, "around-steps", order={"step": CALLS_OF_A_STEP}),
)


def measure(bench: Bench) -> Section:
    """Measure what a log line, an error, a middleware, a limit or a Step adds to a call."""
    costs = Costs()
    rows = {row.agent: [one for one in ROWS if one.agent == row.agent] for row in ROWS}

    def turn(lane: Lane) -> None:
        for row in rows[lane.shape.queues[0]]:
            order = {"tool": row.tool, "batch": BATCH, **row.order}
            lane.order("ordinary", calls=BATCH, **order)  # the first calls of a tool check it
            costs.add(row.name, lane.cost("ordinary", bench.options.calls, **order))

    failures = bench.turns([(GOONDAN, Shape(queues=(agent,))) for agent in rows], turn)
    aims = [
        at_most(f"{row.name}: processor time of a call, to a bare one", ratio, row.limit)
        for row in ROWS
        if row.limit is not None and (ratio := costs.ratio(row.name, _BARE)) is not None
    ]
    ordered = Costs({row.name: costs.of[row.name] for row in ROWS if row.name in costs.of})
    return Section("Ordinary calls", _TEXT, [ordered.table("", _BARE)], aims, failures=failures.values())
