"""What agents do around a tool call: hand-offs and Steps."""

from benchmarks.bench import Bench
from benchmarks.figures import Samples, Section, at_most, percentile
from benchmarks.lanes import Lane
from benchmarks.systems import (
    GOONDAN,
    HANDOFF_QUEUES,
    STOCKED_QUEUE,
    Shape,
)
from benchmarks.workload import BATCH

INSTANCES = 100
HANDOFFS = 2_000
STEP_MS = 20

_CALL, _OWN_CALL, _HANDOFF = "a tool call of a producer", "a tool call of an agent", "a handoff"

_HANDOFFS_TEXT = f"""\
One worker process serves the agent that asks and the one that answers, with 8 slots. A handoff is
`ctx.runtime.request` to an agent that answers with its input: into a mailbox, one at a time in each
instance, the answer back; measured by the agent that asks. *One at a time* is the p50 of a turn; *at once*
is the wall time of up to {HANDOFFS:,} in one Turn divided by their number, the handoffs over {INSTANCES}
instances."""

_STEPS_TEXT = """\
An agent has two hundred dynamic tools and an `async` step middleware. The producer opens the first Step of
one Turn after the other and reads its catalog, in turns with tool calls of the same agent, one at a time. p50
is that of one turn after the other."""


def measure_handoffs(bench: Bench) -> Section:
    """Measure a handoff to another agent, beside a tool call."""
    p50, at_once = Samples("one at a time: p50, ms"), Samples("at once: ms for each")
    count, many = bench.options.lone_calls, min(HANDOFFS, bench.options.calls)

    def turn(lane: Lane) -> None:
        for name, measured in ((_OWN_CALL, "call"), (_HANDOFF, "handoff")):
            answer = lane.order("ask", input={"measure": measured, "count": count})
            p50.add(name, percentile(answer["milliseconds"], 50))
        p50.add(_CALL, percentile(lane.order("one_at_a_time", calls=count)["milliseconds"], 50))
        for name, measured in ((_OWN_CALL, "calls"), (_HANDOFF, "handoffs")):
            order = {"measure": measured, "count": many, "instances": INSTANCES}
            at_once.add(name, lane.order("ask", input=order)["seconds"] / many * 1000)
        at_once.add(_CALL, lane.burst(many, BATCH)["ended"] / many * 1000)

    failures = bench.turns([(GOONDAN, Shape(queues=HANDOFF_QUEUES))], turn)
    aim = at_most("p50 of a handoff, to a tool call's", p50.ratio(_HANDOFF, _CALL), 3)
    tables = [p50.table(), at_once.table()]
    return Section("Handoffs", _HANDOFFS_TEXT, tables, [aim], failures=failures.values())


def measure_steps(bench: Bench) -> Section:
    """Measure how long a producer waits until a Step with 200 tools opens."""
    p50 = Samples("one at a time: p50, ms")
    tools: set[int] = set()
    count = bench.options.lone_calls

    def turn(lane: Lane) -> None:
        p50.add("a tool call", percentile(lane.order("one_at_a_time", calls=count)["milliseconds"], 50))
        opened = lane.order("open_steps", steps=count)
        p50.add("a Step opens", percentile(opened["milliseconds"], 50))
        tools.add(opened["tools"])

    failures = bench.turns([(GOONDAN, Shape(queues=(STOCKED_QUEUE,)))], turn)
    text = f"p50 of opening a Step with {min(tools, default=0)} tools"
    aim = at_most(text, p50.median("a Step opens"), STEP_MS, "ms")
    return Section("Steps", _STEPS_TEXT, [p50.table()], [aim], failures=failures.values())
