"""How a producer's Step is opened on the fast path: its middlewares run on the thread that leads."""

from collections.abc import Callable

from goondan_tasks.bundle import BoundTool
from goondan_tasks.contract.names import STEP_TOOL
from workers.concurrency.threads import SHORT_SECONDS
from workers.plan import Plan, SlowToolDetector, Stamp
from workers.processes.isolation import IsolatedTool
from workers.tools.registry import Registry


def opening_detector() -> SlowToolDetector:
    """Return a detector for openings: their trips to Redis do not count as waits of the bundle's code."""
    return SlowToolDetector(SHORT_SECONDS)


def plan_of_opening(
    registry: Registry,
    agent: str,
    limit_seconds: Callable[[BoundTool], float],
    detector: SlowToolDetector,
    stamp: Stamp,
) -> Plan | None:
    """Return the plan of the system tool that opens Steps; ``None`` if the bundle lacks the agent.

    Middlewares around tool calls, and listeners of them, have nothing to do with it.
    """
    tool, bound = registry.ready(agent, STEP_TOOL), registry.bound(agent, STEP_TOOL)
    if tool is None or tool.bound is not bound or isinstance(tool.handler, IsolatedTool):
        return None
    needs_mark = registry.is_extended(agent)
    limit = limit_seconds(bound)
    return Plan(tool, tool.handler, limit, detector, stamp, takes_call=True, needs_mark=needs_mark)
