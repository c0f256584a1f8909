"""Revisions of a bundle that become active while calls wait and Steps are open.

Each worker can load some of the revisions, and follows the active one if it is among them. A call that names
a revision runs with that, a call of a Step with its Step's, any other with the one that its claim was made
with, on that revision's terms. Where a worker cannot load a revision, it leaves the call to another one, or
ends it with E_BUNDLE_REVISION_UNAVAILABLE; it never runs it with another.
"""

import contextlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from redis import Redis

from broker_config import serializer
from broker_config.scripts import ClaimOnReserve
from goondan_tasks.bundle import Bundle, load_bundle
from goondan_tasks.contract.calls import identity_of, new_call, queue_element
from goondan_tasks.contract.errors import BundleRevisionUnavailableError, GoondanError
from goondan_tasks.contract.messages import ToolCall, ToolCallResult
from goondan_tasks.contract.names import STEP_TOOL, call_identity
from goondan_tasks.history import StepStore
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.submission import Submission, call_json, digest_of
from tests.simulation import faults, producers, sweeps, workers
from tests.simulation.clock import VIRTUAL
from tests.simulation.opened_steps import (
    INSTANCE,
    MOST_STEPS,
    OPENING,
    Bench,
    StepsCall,
    StepsParts,
    StepsWorld,
    ask,
    begin,
    call_tools,
    check_steps,
    crash,
    finish,
    heal_steps,
    outsleep,
    take,
)
from tests.simulation.scenes import Scene
from tests.simulation.trips import Program
from tests.simulation.world import (
    AGENT,
    LEASE,
    PLAIN,
    QUEUES,
    SAFE,
    BrokenPromiseError,
    Held,
    KnownCall,
    Worker,
    World,
)
from workers.extensions.events import EventListeners
from workers.extensions.pipelines import AgentPipelines
from workers.javascript.tools import HostedTools, Hosts
from workers.job import Job, JobState
from workers.processes.isolation import Children, Isolation
from workers.revisions.revisions import Revisions
from workers.tools.registry import Registry
from workers.turns.catalog_guard import CatalogGuard
from workers.turns.steps import StepRequest, Steps, StepTerms, step_tool

#: each revision, and what its bundle declares beside ``plain``, and whether that is idempotent
_EDITIONS: dict[str, dict[str, bool]] = {
    f"git:{'1' * 40}": {"safe": True, "first": True},
    f"git:{'2' * 40}": {"safe": False, "second": True},
    f"git:{'3' * 40}": {"third": True},
}
REFS = tuple(_EDITIONS)
#: what workers can load
_ABLE = ((0,), (1,), (0, 1), (1, 2), (0, 1, 2), (0, 1, 2))
_BUNDLE = """
apiVersion: goondan.ai/v1
kind: Swarm
metadata: {name: default}
spec: {entryAgent: Agent/coder, agents: [Agent/coder]}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {name: coder}
spec: {tools: [Tool/bash]}
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: {name: bash}
spec: {entry: ./tools.py, exports: %s}
"""
_TOOLS = (PLAIN, SAFE, SAFE, "bash__first", "bash__second", "bash__third")
MOST_CALLS = 14


def _edition(root: Path, ref: str) -> Bundle:
    folder = root / ref.removeprefix("git:")
    folder.mkdir()
    (folder / "tools.py").write_text("handlers = {}\n")
    exports = [
        {"name": name, "description": "It does.", "idempotent": is_safe, "parameters": {"type": "object"}}
        for name, is_safe in {"plain": False, **_EDITIONS[ref]}.items()
    ]
    (folder / "goondan.yaml").write_text(_BUNDLE % serializer.encode(exports).decode())
    return load_bundle(folder)


def terms_of(ref: str, tool: str) -> ClaimTerms:
    """Return the terms of a tool in a revision."""
    if tool == STEP_TOOL:
        return OPENING
    return ClaimTerms(idempotent=_EDITIONS[ref].get(tool.removeprefix("bash__"), False), max_attempts=3)


def names_of(ref: str) -> frozenset[str]:
    """Return the tools of a revision."""
    return frozenset({PLAIN, *(f"bash__{name}" for name in _EDITIONS[ref])})


class RevisionsParts(StepsParts):
    """The parts of the scene of Steps, and the bundle of each revision."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        with tempfile.TemporaryDirectory(prefix="goondan-sim-") as folder:
            self.bundles = {ref: _edition(Path(folder), ref) for ref in REFS}
        self.early = {ref: self._early(ref) for ref in REFS}

    def _early(self, ref: str) -> ClaimOnReserve:
        tools: dict[str, ClaimTerms | None] = {name: terms_of(ref, name) for name in names_of(ref)}
        return self.ledger.claim_on_reserve(
            "worker", 3, {QUEUES[0]: {**tools, STEP_TOOL: None}}, bundle_ref=ref
        )


@dataclass(eq=False)
class RevisedCall(StepsCall):
    """A call, and the revisions with which its runs have begun."""

    refs: list[str] = field(default_factory=list)

    @property
    def terms(self) -> ClaimTerms:
        return OPENING  # may_run compares the terms of each run


@dataclass(frozen=True, slots=True)
class Edition:
    """What a worker has of one revision."""

    ref: str
    registry: Registry
    steps: Steps
    guard: CatalogGuard

    def prepare(self, _: object) -> None:
        """Load nothing: no handler runs."""

    try_out = prepare

    def close(self) -> None:
        """Close nothing."""


@dataclass(eq=False)
class Use:
    """The use of a revision by a claimed call."""

    bundle_ref: str | None
    state: JobState = JobState.STARTED


@dataclass(eq=False)
class RevisedBench(Bench):
    """What one worker process has of revisions; what it has of Steps is that of the active one."""

    #: those that it can load
    able: set[str] = field(default_factory=set)
    revisions: Any = None
    #: by token, so that a revision stays open for them
    uses: dict[str, Use] = field(default_factory=dict)

    def view(self, edition: Any) -> Bench:
        """Return what it has of the Steps of one revision."""
        return Bench(self.program, edition.registry, edition.steps, edition.guard)


class RevisionsWorld(StepsWorld):
    """A swarm that follows the revisions of its bundle."""

    parts: RevisionsParts

    def __init__(self, parts: RevisionsParts) -> None:
        self.active = REFS[0]
        #: the revision of each Step as it was kept first
        self.step_refs: dict[str, str] = {}
        #: the claims that were compared, and the calls that a worker could not run
        self.compared: set[str] = set()
        self.refused: set[str] = set()
        self.last_revision: Any = None
        super().__init__(parts)

    def extras(self, turn: str, index: int) -> set[str]:
        return set()

    def take(self, record: Any) -> None:
        super().take(record)
        one = self.calls[record.id]
        self.calls[record.id] = RevisedCall(one.call, one.submission, one.number)

    def new_worker(self, number: int) -> Worker:
        worker = World.new_worker(self, number)
        program = self.parts.programs[number]
        program.begin_again()
        able = {REFS[place] for place in self.pick.choice(_ABLE)}
        if self.is_healing:
            able = set(REFS)
        first = self.active if self.active in able else min(able)
        revisions = Revisions(
            _Maker(self, program), self.parts.bundles[first], fetch=lambda ref: self._fetch(able, ref),
            ref=first, clock=VIRTUAL.monotonic,
        )  # fmt: skip
        revisions.serve(AGENT)
        at: Any = revisions.active
        bench = RevisedBench(program, at.registry, at.steps, at.guard, able=able, revisions=revisions)
        revisions.reach_safe_point = lambda: self.follow(worker)
        self.benches[worker.process] = bench
        worker.reservations.claim_with(self.parts.early[first])
        return worker

    def _fetch(self, able: set[str], ref: str) -> Any:
        if ref not in able:
            raise BundleRevisionUnavailableError(f"There is no {ref} here.")
        return self.parts.bundles[ref], _Checkout()

    def revised(self, worker: Worker) -> RevisedBench:
        """Return what a worker has."""
        bench = self.benches[worker.process]
        assert isinstance(bench, RevisedBench)
        return bench

    def follow(self, worker: Worker) -> bool:
        """Let a worker follow the active revision if it can."""
        revisions = self.revised(worker).revisions
        if revisions.active.ref == self.active:
            return False
        with contextlib.suppress(BundleRevisionUnavailableError):
            revisions.activate(self.active)
            worker.reservations.claim_with(self.parts.early[self.active])
            self.note(f"{worker.name} follows {self.active[:6]}")
        return True

    def request(self, worker: Worker, one: KnownCall, tag: str) -> ClaimRequest | None:
        revisions = self.revised(worker).revisions
        try:
            call = revisions.fixed(one.call)
            revisions.registry(call.bundle_ref)
        except BundleRevisionUnavailableError as error:
            self._leave(worker, one, tag, error)
            return None
        return ClaimRequest(
            one.id, call, worker.name, terms_of(call.bundle_ref, call.tool_name), worker.new_token(),
            was_stored=one.is_stored, must_match=not one.is_stored,
        )  # fmt: skip

    def _leave(self, worker: Worker, one: KnownCall, tag: str, error: BundleRevisionUnavailableError) -> None:
        """Leave a call to other workers, or end it."""
        if self.pick.random() < 0.6:
            self.in_flight.give_back([tag])
            return
        self.refused.add(one.id)
        request = ClaimRequest(one.id, one.call, worker.name, ClaimTerms(), worker.new_token())
        claim = self.ledger.claim(request).run(self.redis)
        if claim.is_ours:
            workers.store_result(self, claim, self.reaper.failure(claim, error), self.pick)
        worker.acknowledged.append((tag, self.ledger.keys.call(one.id)))
        self.tell(f"is refused by {worker.name}", one)

    def bench_of(self, worker: Worker, held: Held) -> Bench:
        """Return what a worker has of the revision of a call that begins."""
        bench, call = self.revised(worker), held.claim.run.call
        one = self.calls[held.claim.run.id]
        use = bench.uses[held.claim.token] = Use(call.bundle_ref)
        try:
            edition = bench.revisions.opened(use)
        except BundleRevisionUnavailableError:
            self.refused.add(one.id)
            raise
        self._may_run(one, call, edition)
        return bench.view(edition)

    def _may_run(self, one: KnownCall, call: ToolCall, edition: Any) -> None:
        """Raise BrokenPromiseError if a call begins with another revision than its claim's, or once more."""
        assert isinstance(one, RevisedCall)
        if edition.ref != call.bundle_ref:
            raise BrokenPromiseError(f"{self.name(one)} of {call.bundle_ref} runs with {edition.ref}")
        unsafe = [ref for ref in one.refs if not terms_of(ref, call.tool_name).idempotent]
        if unsafe:
            raise BrokenPromiseError(f"{self.name(one)} is not idempotent in {unsafe}, and begins again")
        one.refs.append(edition.ref)


class _Checkout:
    def close(self) -> None:
        """Remove nothing."""


class _Maker:
    """Makes the revisions of one worker process."""

    def __init__(self, world: RevisionsWorld, program: Program) -> None:
        self._world, self._program = world, program

    def revision(self, bundle: Bundle, ref: str | None, **_: object) -> Any:
        world = self._world
        registry = Registry(bundle, Isolation(Children(), ""), HostedTools(Hosts(), Path(), ""))
        ttl = world.settings.result_ttl_seconds
        steps = Steps(
            StepStore(self._program.redis, world.ledger.keys, ttl, remembers_revisions=True),
            registry,
            AgentPipelines(),
            events=EventListeners(world.parts.event_loop.submit),
            event_loop=world.parts.event_loop,
            terms=StepTerms(most_steps=MOST_STEPS, max_args_bytes=10_000, help_url=""),
            bundle_ref=ref,
        )
        registry.add_system_tool(step_tool(steps.open, steps.reads))
        return Edition(ref or "", registry, steps, CatalogGuard(registry, steps))


# What happens


def publish(world: RevisionsWorld, pick: Random) -> bool:
    """Make another revision active: a newer one, or an older one again."""
    place = REFS.index(world.active)
    world.active = REFS[max(0, min(place + pick.choice([1, 1, 1, -1]), len(REFS) - 1))]
    world.note(f"{world.active[:6]} is active")
    return True


def look(world: RevisionsWorld, pick: Random) -> bool:
    """Let a worker look which revision is active."""
    worker = world.awake(pick)
    return worker is not None and not world.revised(worker).program.is_busy and world.follow(worker)


def change_able(world: RevisionsWorld, pick: Random) -> bool:
    """Let a worker be able to load one more revision, or one less: its remote is away."""
    worker = world.awake(pick)
    if worker is None:
        return False
    bench, ref = world.revised(worker), pick.choice(REFS)
    if ref in bench.able and ref != bench.revisions.active.ref:
        bench.able.discard(ref)
    else:
        bench.able.add(ref)
    return True


def close_unused(world: RevisionsWorld, pick: Random) -> bool:
    """Let a worker close the revisions that it has not used for a while."""
    worker = world.awake(pick)
    if worker is None:
        return False
    bench = world.revised(worker)
    bench.uses = {token: use for token, use in bench.uses.items() if token in worker.held}
    bench.revisions.close_unused()
    return True


def submit(world: RevisionsWorld, pick: Random) -> bool:
    """Submit a call that names a revision or none, or one of a Step that leaves that to the worker."""
    if world.strangers >= MOST_CALLS:
        return False
    world.strangers += 1
    fields: Any = {"instance_key": INSTANCE, "tool_call_id": f"y{world.strangers}"}
    ref = pick.choice([None, None, *REFS])
    if world.seen_steps and pick.random() < 0.5:
        (turn, _), seen = pick.choice(sorted(world.seen_steps.items(), key=lambda one: one[0]))
        fields |= {"turn_id": turn, "step_id": seen.id}
        ref = None
    # arguments that look like the name of a revision
    lookalike = {"bundleRef": pick.choice(REFS)}
    args: Any = pick.choice([{}, lookalike, lookalike, {"text": f'"bundleRef":"{REFS[0]}"'}])
    call = new_call(AGENT, pick.choice(_TOOLS), args, fields).model_copy(update={"bundle_ref": ref})
    written = serializer.encode(call.args)
    wire = call_json(call, written)
    message = queue_element(identity_of(call), call, wire)
    submission = Submission(identity_of(call), call, wire, digest_of(call, written), message)
    world.ledger.submit_all([submission], "p1")
    world.calls[submission.id] = RevisedCall(call, submission, len(world.calls))
    world.tell(
        f"submitted for {(ref or 'any')[:6]}, Step {(call.step_id or '-')[:4]}", world.calls[submission.id]
    )
    return True


def give_back(world: RevisionsWorld, pick: Random) -> bool:
    """Release a claim that has not begun, with the message as it was submitted."""

    def unbegun(one: Worker) -> list[Held]:
        return one.held_if(lambda held: not held.has_begun)

    worker = world.awake(pick, unbegun)
    if worker is None:
        return False
    claim = pick.choice(unbegun(worker)).claim
    one = world.calls[claim.run.id]
    del worker.held[claim.token]
    release = world.ledger.release(claim, died=False, message=one.submission.message, is_untouched=True)
    if not world.repeated(release, pick, is_same=False):
        workers.store_result(world, claim, world.reaper.failure(claim, ValueError("cancelled")), pick)
    world.tell(f"given back by {worker.name}", one)
    return True


def open_and_die(world: RevisionsWorld, pick: Random) -> bool:
    """Let a worker die before it keeps a Step; another revision is active when the Step is opened again."""

    def openings(one: Worker) -> list[Held]:
        if world.revised(one).program.is_busy:
            return []
        return one.held_if(lambda held: held.is_marked and held.claim.run.call.tool_name == STEP_TOOL)

    worker = world.awake(pick, openings)
    if worker is None:
        return False
    held = pick.choice(openings(worker))
    one = world.known(held.claim.run.id)
    try:
        bench = world.bench_of(worker, held)
        bench.steps.open(Job.of_claim(held.claim, QUEUES[0]))
    except GoondanError:
        return False
    one.begun.append((worker.name, held.claim.run.attempt))
    world.tell(f"was opened in {worker.name}, which died", one)
    world.end(worker)
    publish(world, pick)
    world.now += 2 * LEASE
    world.show_time()
    world.reaper.sweep("sweeper")  # which spares the claims of live workers
    world.now += LEASE
    world.show_time()
    world.reaper.sweep("sweeper")
    return True


def keep_entry_step(world: RevisionsWorld, pick: Random) -> bool:
    """Keep a Step of an agent's entry; another run may have kept it, with another revision."""
    worker = world.awake(pick, lambda one: not world.revised(one).program.is_busy)
    if worker is None:
        return False
    edition, index = world.revised(worker).revisions.active, pick.randrange(MOST_STEPS)
    steps: Steps = edition.steps
    event = new_call(AGENT, PLAIN, {}, {"instance_key": INSTANCE, "turn_id": "entry"})
    step_id = call_identity(AGENT, INSTANCE, event.turn_id, f"step-{index}.1")
    step = steps.prepare(StepRequest(step_id, event, index))
    step.pass_through()
    opened = steps.opened(step)
    record = opened.record
    if world.repeated(opened.keeping, pick):
        opened.note_kept()
    else:
        record = steps.opened_before(record)
    if world.step_refs.get(step_id, record.bundle_ref) != record.bundle_ref:
        raise BrokenPromiseError(f"Step {index} of an entry is kept again, with {record.bundle_ref}")
    world.note(f"{worker.name} has Step {index} of an entry")
    return True


# What must be true


def check_revisions(world: RevisionsWorld) -> None:
    """Raise BrokenPromiseError if a Step, a claim or a result does not fit its revision."""
    check_steps(world)
    _check_kept(world)
    for (turn, index), seen in world.seen_steps.items():
        if seen.names != names_of(world.step_refs[seen.id]):
            raise BrokenPromiseError(f"Step {index} of {turn} is told to have the tools {sorted(seen.names)}")
    for worker in world.workers:
        for held in list(worker.held.values()):
            if held.claim.token not in world.compared:
                world.compared.add(held.claim.token)
                _check_claim(world, worker, held)
    for one in world.calls.values():
        if one.result is not None and one.id not in world.refused:
            result = ToolCallResult.from_json(one.result)
            if result.error is not None and result.error.code == BundleRevisionUnavailableError.code:
                raise BrokenPromiseError(f"{world.name(one)} ended with {result.error.code}")


def _check_kept(world: RevisionsWorld) -> None:
    """Compare the Steps that are new with the catalogs of their revisions."""
    new = set()
    for key, record in world.kept.items():
        step = serializer.decode(record)
        if step["id"] in world.step_refs:
            continue
        ref = world.step_refs[step["id"]] = step["bundleRef"]
        new.add(ref.encode())
        catalog: Any = world.redis.get(world.ledger.keys.catalog(step["catalog"]))
        names = frozenset(item["name"] for item in serializer.decode(catalog))
        if names != names_of(ref):
            raise BrokenPromiseError(f"{key} of {ref} has the tools {sorted(names)}")
    last = world.redis.get(world.ledger.keys.step_revision(AGENT, INSTANCE))
    if (new and last not in new) or (not new and last != world.last_revision):
        raise BrokenPromiseError(f"the last Step's revision is {last!r}; new are {new}")
    world.last_revision = last


def _check_claim(world: RevisionsWorld, worker: Worker, held: Held) -> None:
    one, ref = world.calls[held.claim.run.id], held.claim.run.call.bundle_ref
    name = world.name(one)
    named = one.call.bundle_ref or world.step_refs.get(one.call.step_id or "")
    if ref is None or named not in (None, ref):
        raise BrokenPromiseError(f"{name} of {named} was claimed for {ref}")
    if ref not in world.revised(worker).revisions._kept:
        raise BrokenPromiseError(f"{name} was claimed for {ref} by a worker that has not loaded it")
    token, idempotent = world.redis.hmget(world.ledger.keys.call(one.id), "token", "idempotent")
    wanted = b"1" if terms_of(ref, one.call.tool_name).idempotent else b"0"
    if token == held.claim.token.encode() and idempotent != wanted:
        raise BrokenPromiseError(f"{name} was claimed on other terms than those of {ref}: {idempotent!r}")


REVISIONS = Scene(
    "revisions",
    (
        (publish, 1),
        (look, 1),
        (change_able, 1),
        (close_unused, 1),
        (submit, 4),
        (ask, 4),
        (take, 4),
        (crash, 0),
        (call_tools, 2),
        (producers.cancel, 0),
        (workers.reserve, 5),
        (workers.claim, 5),
        (workers.mark, 5),
        (begin, 6),
        (finish, 4),
        (workers.renew, 1),
        (give_back, 1),
        (open_and_die, 3),
        (keep_entry_step, 1),
        (faults.freeze, 0),
        (faults.thaw, 2),
        (faults.kill, 0),
        (outsleep, 0),
        (faults.tick, 1),
        (sweeps.put_back, 1),
        (sweeps.sweep, 1),
        (sweeps.settle, 2),
    ),
    RevisionsParts,
    RevisionsWorld,
    check_revisions,
    heal_steps,
    grave=("freeze", "kill", "outsleep", "give_back", "cancel"),
)
