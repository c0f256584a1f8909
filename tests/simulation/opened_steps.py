"""Steps of Turns that a producer drives: workers die as they open them, and calls are late or strangers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from random import Random
from typing import Any

from redis import Redis

from broker_config import serializer
from goondan_tasks.authoring.extension_api import StepContext
from goondan_tasks.client.pending_call import PendingCall
from goondan_tasks.client.turns import ProducerStep, Turn
from goondan_tasks.contract.calls import identity_of, new_call, queue_element
from goondan_tasks.contract.errors import GoondanError, ToolCancelledError, ToolNotInCatalogError
from goondan_tasks.contract.messages import JsonObject, ToolCall, ToolCallResult
from goondan_tasks.contract.names import STEP_TOOL
from goondan_tasks.fleet.agent_registry import AgentRecord
from goondan_tasks.history import StepStore
from goondan_tasks.ledger.claim_request import ClaimTerms
from goondan_tasks.ledger.endings import finish_step
from goondan_tasks.ledger.record import CallRecord, Claim, Stored
from goondan_tasks.ledger.submission import Submission, call_json, digest_of
from tests.simulation import faults, producers, sweeps, workers
from tests.simulation.admission import BUNDLE, REGISTRY
from tests.simulation.clock import VIRTUAL
from tests.simulation.healing import heal
from tests.simulation.invariants import check, require_alone
from tests.simulation.programs import Operator, Unseen, without_served_agents
from tests.simulation.scene_world import SceneWorld
from tests.simulation.scenes import Scene
from tests.simulation.scripts import load_scripts
from tests.simulation.trips import Program, ProgramDiedError
from tests.simulation.world import (
    AGENT,
    PLAIN,
    QUEUES,
    SAFE,
    BrokenPromiseError,
    Held,
    KnownCall,
    Parts,
    Worker,
)
from workers.extensions.events import EventListeners
from workers.extensions.pipelines import AgentPipelines
from workers.job import Job
from workers.tools.dynamic_tools import DynamicTools, dynamic_tool, turn_of
from workers.turns.catalog_guard import CatalogGuard
from workers.turns.steps import Steps, StepTerms, step_tool
from workers.turns.turn_state import OpenedStep

#: names by which both Turns have calls that drop tools (``reply_of``)
TURNS, INSTANCE = ("t0", "t174"), "i1"
MOST_STEPS = 3
#: how many rounds a quiet swarm may need for all Steps
_ROUNDS = 120
OPENING = ClaimTerms(idempotent=True, max_attempts=3)


class StepsParts(Parts):
    """The parts of the swarm, a producer that drives Turns, and what worker processes have of Steps."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        without_served_agents(self.reaper)
        self.producer_program = Operator(redis, self.settings, others_act=0.3)
        self.programs = [Program(redis, others_act=0.3) for _ in range(3)]
        self.event_loop: Any = Unseen()  # all middlewares are plain
        claiming = self.ledger.claim_on_reserve("worker", 3, {QUEUES[0]: {SAFE: OPENING, STEP_TOOL: OPENING}})
        self.claiming = [claiming, claiming]
        StepStore(redis, self.ledger.keys, 1)
        load_scripts(redis)


class StepsCall(KnownCall):
    """A tool call, or one that opens a Step."""

    @property
    def terms(self) -> ClaimTerms:
        return OPENING if self.call.tool_name in (SAFE, STEP_TOOL) else ClaimTerms()


@dataclass(eq=False)
class Bench:
    """What one worker process has of Steps."""

    program: Program
    registry: Any
    steps: Steps
    guard: CatalogGuard


@dataclass(eq=False)
class Driver:
    """The producer's view of one Turn."""

    turn: Turn
    pending: PendingCall | None = None
    steps: list[ProducerStep] = field(default_factory=list)
    #: how many of its Steps have made their calls in the end
    submitted: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """A Step as its producer got it first."""

    id: str
    names: frozenset[str]
    blocks: tuple[JsonObject, ...]


class StepsWorld(SceneWorld):
    """A swarm in which a producer drives two Turns."""

    def __init__(self, parts: StepsParts) -> None:
        self.parts = parts
        self.producer_client = parts.producer_program.client
        self.benches: dict[str, Bench] = {}
        #: how often step middlewares have run
        self.runs = 0
        super().__init__(parts)
        catalog = tuple({"name": name} for name in (PLAIN, SAFE))
        record = AgentRecord(name=AGENT, swarm="s", workspace="w", catalog=catalog)
        rows: Any = {AGENT: serializer.encode(record.to_wire())}
        self.redis.hset(self.ledger.keys.agents, mapping=rows)
        self.drivers = {turn: self.new_driver(turn) for turn in TURNS}
        #: by Turn and index: each Step as its producer got it first, and the tools that had been dropped then
        self.seen_steps: dict[tuple[str, int], Seen] = {}
        self.dropped_before: dict[tuple[str, int], frozenset[str]] = {}
        #: by Turn: the tools that calls have dropped for sure, and those that they may have dropped
        self.dropped: dict[str, set[str]] = {turn: set() for turn in TURNS}
        self.maybe_dropped: dict[str, set[str]] = {turn: set() for turn in TURNS}
        #: the records of Steps as they were kept first
        self.kept: dict[str, bytes] = {}
        #: by Turn: the ids of the calls that its Steps have made
        self.made: dict[str, set[str]] = {turn: set() for turn in TURNS}
        self.strangers = 0
        VIRTUAL.on_sleep = self.wait

    def wait(self, seconds: float) -> None:
        """Let time pass while a worker sleeps."""
        self.now += seconds
        self.show_time()

    def new_driver(self, turn: str) -> Driver:
        """Begin a Turn, or begin it again after a crash of the producer."""
        return Driver(self.producer_client.turn(AGENT, INSTANCE, turn_id=turn))

    def new_worker(self, number: int) -> Worker:
        worker = super().new_worker(number)
        program = self.parts.programs[number]
        program.begin_again()
        registry: Any = copy(REGISTRY)
        registry.is_extended = lambda _: True  # the middlewares are the scene's own
        registry.dynamic = DynamicTools()
        pipelines = AgentPipelines()
        pipelines.register(AGENT, "step", self._middleware(registry), extension="extras")
        steps = Steps(
            StepStore(program.redis, self.ledger.keys, self.settings.result_ttl_seconds),
            registry,
            pipelines,
            events=EventListeners(self.parts.event_loop.submit),
            event_loop=self.parts.event_loop,
            terms=StepTerms(most_steps=MOST_STEPS, max_args_bytes=10_000, help_url=""),
        )
        registry.add_system_tool(step_tool(steps.open, steps.reads))
        self.benches[worker.process] = Bench(program, registry, steps, CatalogGuard(registry, steps))
        return worker

    def bench_of(self, worker: Worker, held: Held) -> Bench:
        """Return what a worker has for a call that begins; raises GoondanError."""
        return self.benches[worker.process]

    def _middleware(self, registry: Any) -> Callable[[StepContext], Any]:
        """Return a middleware that does what the Step's message says, and what else happens to happen."""

        def extras(ctx: StepContext) -> Any:
            self.runs += 1
            if self.is_faulty(0.1):
                raise ValueError("the middleware fails")
            message, turn = ctx.message or {}, (ctx.instance_key, ctx.turn_id)
            for name in message.get("register", ()):
                registry.dynamic.add(AGENT, _extra(name, turn))
            for name in message.get("unregister", ()):
                registry.dynamic.remove(AGENT, name, turn)
            if self.pick.random() < 0.3:  # a second run may see another world
                ctx.tool_catalog = [item for item in ctx.tool_catalog if item.name != SAFE]
            ctx.blocks.append({"type": "run", "data": self.runs})
            return ctx.next()

        return extras

    def known(self, call_id: str) -> KnownCall:
        self.adopt()
        return self.calls[call_id]

    def adopt(self) -> None:
        """Note the calls that the producer has made."""
        members: Any = self.redis.zrange(self.ledger.keys.calls(AGENT), 0, -1)
        unknown = [one.decode() for one in members if one.decode() not in self.calls]
        for record in self.ledger.records(unknown) if unknown else []:
            if record is not None:
                self.take(record)

    def take(self, record: CallRecord) -> None:
        call = record.call
        args = serializer.encode(call.args)
        wire = call_json(call, args)
        message = queue_element(record.id, call, wire)
        submission = Submission(record.id, call, wire, digest_of(call, args), message)
        self.calls[record.id] = StepsCall(call, submission, len(self.calls))

    def extras(self, turn: str, index: int) -> set[str]:
        """Return the tools that the Steps before have registered and not unregistered."""
        names: set[str] = set()
        for earlier in range(index):
            message = message_of(turn, earlier)
            names = names.union(message.get("register", ())).difference(message.get("unregister", ()))
        return names


def _extra(name: str, turn: tuple[str, str]) -> Any:
    item = {"name": name, "parameters": {"type": "object"}}
    return dynamic_tool(
        item,
        lambda ctx, input: {},
        {"idempotent": True},
        extension="extras",
        entry_path=BUNDLE.root,
        turn=turn,
    )


def message_of(turn: str, index: int) -> JsonObject:
    """Return what a Step begins with: it is the same if the producer begins the Turn again."""
    plan = Random(f"{turn} {index}")
    if index and plan.random() < 0.3:
        return {"unregister": [f"extra__{plan.randrange(index)}"]}
    return {"register": [f"extra__{index}"]} if plan.random() < 0.8 else {}


def reply_of(turn: str, index: int, part: int) -> list[JsonObject]:
    """Return the calls that the model makes in a Step."""
    plan = Random(f"{turn} {index} {part}")
    names = [
        PLAIN,
        PLAIN,
        PLAIN,
        SAFE,
        SAFE,
        "bash__none",
        *(f"extra__{number}" for number in range(MOST_STEPS)),
    ]
    calls = []
    for number in range(plan.choice([1, 2, 3])):
        args = {"drop": f"extra__{plan.randrange(index)}"} if index and plan.random() < 0.8 else {}
        function = {"name": plan.choice(names), "arguments": serializer.encode(args).decode()}
        calls.append({"id": f"call_{index}{part}{number}", "type": "function", "function": function})
    return calls


# What the producer does


@contextmanager
def _interrupted(world: StepsWorld, program: Program, pick: Random) -> Iterator[None]:
    """Let others act between the trips of a program, which may die."""

    def others(pick: Random) -> None:
        if pick.choice(_OTHERS)(world, pick):
            STEPS.check(world)

    if world.is_healing or program.is_busy:
        yield
        return
    with program.interrupted(pick, others):
        yield


@contextmanager
def _driving(world: StepsWorld, pick: Random, driver: Driver) -> Iterator[None]:
    try:
        with _interrupted(world, world.parts.producer_program.program, pick):
            yield
    except ProgramDiedError:
        world.note(f"the producer of {driver.turn.id} has died")
        world.drivers[driver.turn.id] = world.new_driver(driver.turn.id)


def _driver(world: StepsWorld, pick: Random, wanted: Callable[[Driver], object]) -> Driver | None:
    if world.parts.producer_program.program.is_busy:
        return None
    able = [driver for driver in world.drivers.values() if wanted(driver)]
    return pick.choice(able) if able else None


def ask(world: StepsWorld, pick: Random) -> bool:
    """Ask for the next Step of a Turn."""
    driver = _driver(world, pick, lambda one: one.pending is None and len(one.steps) < MOST_STEPS)
    if driver is not None:
        _ask(world, pick, driver)
    return driver is not None


def _ask(world: StepsWorld, pick: Random, driver: Driver) -> None:
    turn, index = driver.turn.id, len(driver.steps)
    world.dropped_before.setdefault((turn, index), frozenset(world.dropped[turn]))
    world.note(f"{turn} asks for Step {index}")
    with _driving(world, pick, driver):
        driver.pending = driver.turn.ask(message_of(turn, index), None)


def take(world: StepsWorld, pick: Random) -> bool:
    """Let the producer take a Step that has been opened."""
    driver = _driver(world, pick, lambda one: one.pending is not None)
    return driver is not None and _take(world, pick, driver)


def _take(world: StepsWorld, pick: Random, driver: Driver) -> bool:
    if driver.pending is None:
        return False
    result = world.ledger.result(driver.pending.id)
    if result is None:
        return False
    with _driving(world, pick, driver):
        try:
            kept = driver.turn.take(result, is_new=pick.random() < 0.5)
        except GoondanError as error:
            world.note(f"{driver.turn.id} has no Step {len(driver.steps)}: {error.code}")
            driver.pending = None
            return True
        driver.pending = None
        driver.steps.append(ProducerStep(kept.catalog, kept.record, driver.turn.scope))
        _note_step(world, driver.turn.id, driver.steps[-1])
    return True


def _note_step(world: StepsWorld, turn: str, step: ProducerStep) -> None:
    """Compare a Step with what its producer got before, and with what earlier Steps have left to it."""
    names = frozenset(item.name for item in step.catalog)
    seen = Seen(step.id, names, tuple(step.blocks))
    world.note(f"{turn} has Step {step.index}: {', '.join(sorted(names))}")
    if world.seen_steps.setdefault((turn, step.index), seen) != seen:
        raise BrokenPromiseError(
            f"Step {step.index} of {turn} changes: {world.seen_steps[turn, step.index]}, {seen}"
        )
    found = {name for name in names if name.startswith("extra__")}
    left = world.extras(turn, step.index)
    # an earlier run of this opening, or one that has failed, may have registered its tools in the same worker
    again = message_of(turn, step.index).get("register", ())
    most = left.union(again) - world.dropped_before[turn, step.index]
    least = left - world.maybe_dropped[turn]
    if not least <= found <= most:
        raise BrokenPromiseError(
            f"Step {step.index} of {turn} has {sorted(found)}, least {sorted(least)}, most {sorted(most)}"
        )


def crash(world: StepsWorld, pick: Random) -> bool:
    """Let the producer of a Turn begin again."""
    driver = _driver(world, pick, lambda one: one.steps)
    if driver is None or pick.random() < 0.5:
        return False
    world.note(f"{driver.turn.id} begins again")
    world.drivers[driver.turn.id] = world.new_driver(driver.turn.id)
    return True


def call_tools(world: StepsWorld, pick: Random) -> bool:
    """Submit calls of a Step, mostly of the last one; others are late."""
    driver = _driver(world, pick, lambda one: one.steps)
    if driver is None:
        return False
    step = driver.steps[-1] if pick.random() < 0.7 else pick.choice(driver.steps)
    return _submit(world, pick, driver, step, pick.choice([0, 0, 1]))


def _submit(world: StepsWorld, pick: Random, driver: Driver, step: ProducerStep, part: int) -> bool:
    turn = driver.turn.id
    with _driving(world, pick, driver):
        _, pending = step.submit(reply_of(turn, step.index, part), None, None)
        world.made[turn].update(one.id for one in pending)
        world.note(f"Step {step.index} of {turn} makes {len(pending)} calls")
    return True


def call_elsewhere(world: StepsWorld, pick: Random) -> bool:
    """Submit a call to a Step of another Turn, or to one that is unknown."""
    if world.strangers >= 4 or not world.seen_steps:
        return False
    (turn, _), seen = pick.choice(sorted(world.seen_steps.items(), key=lambda one: one[0]))
    world.strangers += 1
    other = next(one for one in TURNS if one != turn)
    step_id = seen.id if pick.random() < 0.7 else "0" * 8 + seen.id[8:]
    fields: Any = {
        "instance_key": INSTANCE, "turn_id": other, "step_id": step_id, "tool_call_id": f"x{world.strangers}",
    }  # fmt: skip
    call = new_call(AGENT, PLAIN, {"n": world.strangers}, fields)
    args = serializer.encode(call.args)
    wire = call_json(call, args)
    message = queue_element(identity_of(call), call, wire)
    submission = Submission(identity_of(call), call, wire, digest_of(call, args), message)
    world.ledger.submit_all([submission], "p1")
    return True


# What workers do


def _runs(world: StepsWorld, worker: Worker, *, has_begun: bool) -> list[Held]:
    """Return the marked claims of a worker that its handlers could begin, or end."""
    if world.benches[worker.process].program.is_busy:
        return []
    return worker.held_if(lambda held: held.is_marked and held.has_begun is has_begun)


def begin(world: StepsWorld, pick: Random) -> bool:
    """Begin a marked call: open a Step, or ask whether the call's Step has its tool."""
    worker = world.awake(pick, lambda one: _runs(world, one, has_begun=False))
    if worker is None:
        return False
    held = pick.choice(_runs(world, worker, has_begun=False))
    if not held.is_fresh(world.now):
        held.is_marked = False
        return False
    one = world.known(held.claim.run.id)
    held.has_begun = True
    one.begun.append((worker.name, held.claim.run.attempt))
    world.tell(f"began in {worker.name}, attempt {held.claim.run.attempt}", one)
    require_alone(world, one, held)
    job = Job.of_claim(held.claim, QUEUES[0])
    try:
        with _interrupted(world, world.benches[worker.process].program, pick):
            result = _begun(world, worker, held, job, pick)
    except ProgramDiedError:
        world.note(f"{worker.name} has died in {world.name(one)}")
        if worker in world.workers:
            world.end(worker)
        return True
    if result is not None:
        worker.held.pop(held.claim.token, None)
        if job.opened is None:
            workers.store_result(world, held.claim, result, pick)
        else:
            _keep(world, held.claim, result, job.opened, pick)
    return True


def _keep(world: StepsWorld, claim: Claim, result: ToolCallResult, opened: OpenedStep, pick: Random) -> None:
    """Store the result of an opening, and with it the Step."""
    ledger = world.ledger
    finish = ledger.finish_many([ledger.ended_with(claim, result)])
    script = finish_step(ledger.scripts.finish_step, finish, opened.keeping)
    [stored] = world.repeated(script, pick, is_same=False)
    if stored > Stored.LOST:
        opened.note_kept()
    elif stored == Stored.CANCELLED:
        world.reaper.fail(claim, ToolCancelledError())


def _begun(world: StepsWorld, worker: Worker, held: Held, job: Job, pick: Random) -> ToolCallResult | None:
    """Return the result of an opening or of a call that is refused; nothing if a handler runs."""
    run = held.claim.run
    try:
        bench = world.bench_of(worker, held)
        if run.call.tool_name == STEP_TOOL:
            tool = bench.registry.ready(AGENT, STEP_TOOL)
            if pick.random() < 0.5 and (asked := tool.reads(job)) is not None:
                job.read_ahead = asked.run(bench.program.redis)
            return run.ok(tool.handler(job, run.call.args), 0.0)
        _admit(world, bench, run.call, pick)
    except GoondanError as error:
        world.tell(f"is refused: {error.code}", world.calls[run.id])
        return world.reaper.failure(held.claim, error, 0.0)
    except ValueError as error:
        return world.reaper.failure(held.claim, GoondanError(str(error)), 0.0)
    drop = run.call.args.get("drop")
    if drop and bench.registry.dynamic.remove(AGENT, drop, turn_of(run.call)):
        world.maybe_dropped[run.call.turn_id].add(drop)
    return None


def _unwatched(*_: Any, **_fields: Any) -> Callable[[], None]:
    return lambda: None


def _admit(world: StepsWorld, bench: Bench, call: ToolCall, pick: Random) -> None:
    """Ask the guard, as the lead does or as the general path does; raises as it."""
    if call.step_id is None:
        bench.guard.admit(call, _unwatched)
        return
    seen = [
        one for (turn, _), one in world.seen_steps.items() if turn == call.turn_id and one.id == call.step_id
    ]
    is_listed = any(call.tool_name in one.names for one in seen)
    wire = call.to_wire()
    if pick.random() < 0.5:
        bench.guard.learn([wire])
        if bench.guard.admits(wire, call.bundle_ref):
            if not is_listed:
                raise BrokenPromiseError(f"{call.tool_name} is run at once, and its Step has only {seen}")
            return
    try:
        bench.guard.admit(call, _unwatched)
    except ToolNotInCatalogError:
        if is_listed:
            raise BrokenPromiseError(f"{call.tool_name} is refused, and its Step has it: {seen}") from None
        raise
    if not is_listed:
        raise BrokenPromiseError(f"{call.tool_name} is run, and its Step has only {seen}")


def finish(world: StepsWorld, pick: Random) -> bool:
    """End a call: the Turn's other workers are told which tools it has lost, then its result is stored."""
    worker = world.awake(pick, lambda one: _runs(world, one, has_begun=True))
    if worker is None:
        return False
    held = pick.choice(_runs(world, worker, has_begun=True))
    bench, run = world.benches[worker.process], held.claim.run
    one, untold = world.known(run.id), bench.registry.dynamic.untold(run.call.agent_name, turn_of(run.call))
    try:
        with _interrupted(world, bench.program, pick):
            if untold:
                bench.guard.note_unregistered(run.call, untold)
    except ProgramDiedError:
        world.note(f"{worker.name} has died in {world.name(one)}")
        if worker in world.workers:
            world.end(worker)
        return True
    worker.held.pop(held.claim.token, None)
    workers.store_result(world, held.claim, run.ok({"by": worker.name, "of": run.id}, 0.0), pick)
    stored = world.ledger.result(run.id)
    if untold and stored is not None and stored.output == {"by": worker.name, "of": run.id}:
        world.dropped[run.call.turn_id].update(untold)
    world.tell(f"ended in {worker.name}", one)
    return True


def change_workers(world: StepsWorld, pick: Random) -> bool:
    """Let one worker open a Step and run its calls, and another one open the next Step of the Turn."""
    driver = _driver(world, pick, lambda one: one.pending is None and len(one.steps) == 1)
    if driver is None or any(one.is_frozen for one in world.workers):
        return False
    for actor in pick.sample(world.workers, 2):
        for one in world.workers:
            one.is_frozen = one is not actor
        if driver is world.drivers[driver.turn.id]:  # else its producer has died
            _ask(world, pick, driver)
            _work(world)
            if _take(world, pick, driver) and driver.steps and driver is world.drivers[driver.turn.id]:
                _submit(world, pick, driver, driver.steps[-1], pick.choice([0, 1]))
                _work(world)
    for one in world.workers:
        one.is_frozen = False
    return True


def outsleep(world: StepsWorld, pick: Random) -> bool:
    """Stop a worker until its leases are over; it goes on with what it knew."""
    worker = world.awake(pick, lambda one: one.held)
    if worker is None:
        return False
    for _ in range(4):
        world.now += 9
        world.show_time()
        sweeps.sweep(world, pick)
    while world.swept:
        world.reaper.settle(world.swept.pop())
    world.note(f"{worker.name} was frozen beyond its leases")
    return True


# What must be true


def check_steps(world: StepsWorld) -> None:
    """Raise BrokenPromiseError if a Step is not as it was opened first."""
    world.adopt()
    check(world)
    keys: Any = world.redis.keys(f"{world.ledger.keys.step('')}*")
    for key in sorted(keys):
        record: Any = world.redis.hget(key, "step")
        name = key.decode()
        if record is None:
            raise BrokenPromiseError(f"{name} is no Step")
        if world.kept.setdefault(name, record) != record:
            raise BrokenPromiseError(f"{name} was {world.kept[name]!r}, and is {record!r}")


def heal_steps(world: StepsWorld) -> None:
    """End all faults: each Turn gets all its Steps, every call ends, and the Turn's record is complete."""
    world.is_healing = True
    for number in range(len(world.workers)):
        world.workers[number] = world.new_worker(number)
    world.swept.clear()
    for _ in range(_ROUNDS):
        world.now += 4
        world.show_time()
        world.reaper.sweep("sweeper")
        world.in_flight.give_back(world.in_flight.overdue(1))
        for driver in list(world.drivers.values()):
            take(world, Random(1))
            if driver.pending is None and len(driver.steps) == MOST_STEPS:
                for step in driver.steps[driver.submitted :]:
                    _submit(world, Random(1), driver, step, 0)
                driver.submitted = MOST_STEPS
        ask(world, Random(1))
        _work(world)
        check_steps(world)
        has_all = all(len(driver.steps) == MOST_STEPS for driver in world.drivers.values())
        if has_all and all(one.result is not None for one in world.calls.values()):
            break
    else:
        raise BrokenPromiseError(
            f"not all Steps are opened: {[len(one.steps) for one in world.drivers.values()]}"
        )
    for turn, driver in world.drivers.items():
        _require_record(world, turn, driver)
    heal(world)


def _work(world: StepsWorld) -> None:
    pick = Random(1)
    for _ in range(20):
        has_worked = workers.reserve(world, pick)
        while workers.claim(world, pick):
            pass
        for step in (workers.mark, begin, finish):
            while step(world, pick):
                has_worked = True
        if not has_worked:
            return


def _require_record(world: StepsWorld, turn: str, driver: Driver) -> None:
    """Raise BrokenPromiseError if the record of a Turn lacks a Step or a call, or has a Step twice."""
    entries = driver.turn._entries()
    ids = [step.id for step in driver.steps]
    # one whose opening has failed after it was kept, such as by a cancel, is nobody's Step
    opened = [(one.step_id, one.message) for one in entries if not one.call_ids and one.step_id in ids]
    wanted = [(step.id, message_of(turn, step.index)) for step in driver.steps]
    if opened != wanted:
        raise BrokenPromiseError(f"the record of {turn} has the Steps {opened}, not {wanted}")
    noted = {call_id for one in entries for call_id in one.call_ids}
    if missing := world.made[turn] - noted:
        raise BrokenPromiseError(f"the record of {turn} lacks the calls {missing}")


_OTHERS: tuple[Callable[..., bool], ...] = (
    begin, begin, finish, workers.mark, workers.reserve, sweeps.sweep, sweeps.settle, outsleep,
    workers.renew, call_tools, take, ask,
)  # fmt: skip

STEPS = Scene(
    "steps",
    (
        (ask, 4),
        (take, 4),
        (crash, 0),
        (call_tools, 3),
        (call_elsewhere, 0),
        (producers.cancel, 0),
        (workers.reserve, 5),
        (workers.claim, 1),
        (workers.mark, 5),
        (begin, 6),
        (finish, 4),
        (workers.renew, 1),
        (workers.give_back, 0),
        (faults.freeze, 0),
        (faults.thaw, 2),
        (faults.kill, 0),
        (outsleep, 0),
        (change_workers, 1),
        (faults.tick, 1),
        (sweeps.put_back, 0),
        (sweeps.sweep, 1),
        (sweeps.settle, 2),
    ),
    StepsParts,
    StepsWorld,
    check_steps,
    heal_steps,
    grave=("freeze", "kill", "outsleep", "give_back", "cancel"),
)
