"""The agent with the older documents' tools, in this process; its Steps stand in a Redis of the test's."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fakeredis
from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle, load_bundle
from goondan_tasks.contract.calls import Run, identity_of, new_call
from goondan_tasks.contract.messages import ToolCall, ToolCallResult, wall_clock
from goondan_tasks.contract.names import STEP_TOOL
from goondan_tasks.history import StepInput, StepRecord, StepStore
from goondan_tasks.ledger.ledger import Ledger
from tests.unit.workers.runs import job_of, open_step
from workers.concurrency.event_loop import EventLoopThread
from workers.executor import Executor
from workers.extensions.events import running
from workers.extensions.services import SwarmBundleFor, no_swarm_bundle
from workers.javascript.tools import Hosts
from workers.oauth import WorkerOAuth
from workers.processes.isolation import Children
from workers.revisions.factory import make_executor, make_extensions, make_registry, make_steps
from workers.testing import run_here
from workers.tools.registry import Registry
from workers.turns.steps import Steps

V1_PROFILE_BUNDLE = Path(__file__).parents[3] / "bundles" / "v1-profile"
AGENT = "curator"

ON_TIME = 10.0


@dataclass(frozen=True, slots=True)
class Gallery:
    """What runs."""

    registry: Registry
    executor: Executor
    steps: Steps
    ledger: Ledger
    event_loop: EventLoopThread
    agent: str

    def run(self, call: ToolCall) -> ToolCallResult:
        """Run a call, and keep its result as a worker would."""
        run = Run(identity_of(call), call, "w1", 1, wall_clock(), wall_clock)
        return run_here(self.executor, run)

    def call(self, tool: str, args: Any = None, **fields: Any) -> ToolCallResult:
        """Run a call of the agent."""
        return self.run(new_call(self.agent, tool, args, fields))

    def step(self, index: int = 0, message: Any = None, origin: Any = None) -> StepRecord:
        """Open a Step of the Turn ``t1``."""
        asked = StepInput(index=index, message=message).to_wire()
        fields = {"tool_call_id": f"step-{index}", "turn_id": "t1", "origin": origin}
        call = new_call(self.agent, STEP_TOOL, asked, fields)
        running.set(job_of(call))
        return open_step(self.steps, call)

    def new(self, tool: str, step: StepRecord, args: Any = None) -> ToolCall:
        """Return a new call that belongs to a Step."""
        return new_call(self.agent, tool, args, {"turn_id": step.turn_id, "step_id": step.id})

    def keep(self, step: StepRecord, *runs: tuple[ToolCall, ToolCallResult | None]) -> None:
        """Keep calls of a Step, and the results that there are, as producer, ledger and worker do."""
        keep_calls(self.ledger.redis, step, *runs)


def keep_calls(redis: Redis, step: StepRecord, *runs: tuple[ToolCall, ToolCallResult | None]) -> None:
    """Keep calls of a Step, and the results that there are."""
    keys, ids = Keys(), [identity_of(call) for call, _ in runs]
    for call_id, (call, result) in zip(ids, runs, strict=True):
        redis.hset(keys.call(call_id), "call", serializer.encode(call.to_wire()))
        if result is not None:
            redis.hset(keys.call(call_id), "result", serializer.encode(result.to_wire()))
    store = StepStore(redis, keys, 60)
    store.run(store.noting(step, ids))


@contextmanager
def gallery(
    state_root: Path,
    bundle: Path | Bundle = V1_PROFILE_BUNDLE,
    *,
    agent: str = AGENT,
    tokens: WorkerOAuth | None = None,
    swarm_bundle_for: SwarmBundleFor = no_swarm_bundle,
) -> Iterator[Gallery]:
    """Let it run."""
    loaded = bundle if isinstance(bundle, Bundle) else load_bundle(bundle)
    settings = Settings.load(state_root=state_root)
    event_loop = EventLoopThread()
    event_loop.start()
    with fakeredis.FakeRedis() as redis, Children() as children:
        ledger = Ledger(redis, settings)
        registry = make_registry(settings, loaded, children, Hosts())
        extensions = make_extensions(loaded, registry, event_loop, swarm_bundle_for=swarm_bundle_for)
        extensions.services = services = replace(extensions.services, oauth=tokens)
        steps = make_steps(ledger, registry, services, event_loop)
        executor = make_executor(settings, registry, services, event_loop, steps=steps)
        extensions.load(agent)
        yield Gallery(registry, executor, steps, ledger, event_loop, agent)
    event_loop.stop()
