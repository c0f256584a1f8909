"""Instances are deleted and collected, while calls open them, run in them, and end."""

import contextlib
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from redis import Redis

from broker_config import serializer
from broker_config.settings import Settings
from goondan_tasks.contract.calls import identity_of, new_call, queue_element
from goondan_tasks.contract.errors import InstanceBusyError, InstanceNotFoundError
from goondan_tasks.fleet.agent_registry import AgentRecord
from goondan_tasks.instances.housekeeping import InstanceRemoval
from goondan_tasks.instances.table import Hold, InstanceDirectory, Instances
from goondan_tasks.ledger.claim_request import ClaimRequest
from goondan_tasks.ledger.record import Stored
from goondan_tasks.ledger.submission import Submission, digest_of
from tests.simulation import faults, producers, sweeps, workers
from tests.simulation.clock import VIRTUAL
from tests.simulation.healing import heal
from tests.simulation.invariants import check, require_alone
from tests.simulation.programs import Operator, show_virtual_time, without_served_agents
from tests.simulation.scene_world import SceneWorld
from tests.simulation.scenes import Scene
from tests.simulation.scripts import load_scripts
from tests.simulation.trips import ProgramDiedError
from tests.simulation.world import (
    AGENT,
    LEASE,
    PLAIN,
    SAFE,
    THINKER,
    BrokenPromiseError,
    Held,
    KnownCall,
    Parts,
    Worker,
)
from workers.instances.workdirs import InstanceWorkdirs, Workdirs

WORKSPACE = "w"
INSTANCES = ("i1", "i2")
MOST_CALLS = 40


class _Operator(Operator):
    """An operator who deletes; the time of the latest hold is noted."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        super().__init__(redis, settings, others_act=0.3)
        #: ms
        self.held_at = 0
        table: Any = self.client._housekeeping._table
        hold = table.hold

        def noting(*args: Any, **fields: Any) -> list[Hold]:
            holds: list[Hold] = hold(*args, **fields)
            self.held_at = min(one.now for one in holds)
            return holds

        table.hold = noting


class DeletionsParts(Parts):
    """The parts of the swarm, the instances' files, and two programs of operators."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        show_virtual_time(redis)
        without_served_agents(self.reaper)
        self.state_root = Path(tempfile.mkdtemp(prefix="goondan-sim-state-"))
        weakref.finalize(self, shutil.rmtree, self.state_root, ignore_errors=True)
        settings = self.settings.model_copy(update={"state_root": self.state_root})
        self.operators = [_Operator(redis, settings) for _ in range(2)]
        self.table = Instances(redis, self.ledger.keys)
        load_scripts(redis)


@dataclass(frozen=True, slots=True)
class Written:
    """A file that a run has written in its instance's directory."""

    call_id: str
    queued_at: float
    path: Path


class Deletions(SceneWorld):
    """A swarm whose instances are deleted."""

    def __init__(self, parts: DeletionsParts) -> None:
        super().__init__(parts)
        self.operators, self.table, self.state_root = parts.operators, parts.table, parts.state_root
        shutil.rmtree(self.state_root / "workspaces", ignore_errors=True)
        agents = [AgentRecord(name=name, swarm="s", workspace=WORKSPACE) for name in (AGENT, THINKER)]
        rows: Any = {agent.name: serializer.encode(agent.to_wire()) for agent in agents}
        self.redis.hset(self.ledger.keys.agents, mapping=rows)
        for operator in self.operators:
            operator.client.agents()  # known from now on
        #: by process: what it knows of the directories
        self.workdirs: dict[str, InstanceWorkdirs] = {}
        #: by token: the directory of a run, and the file that it has written there
        self.opened: dict[str, Path] = {}
        self.written: dict[str, Written] = {}
        #: the files that no deletion may have removed, by the names of their instances' directories
        self.expected: dict[str, list[Written]] = {name: [] for name in INSTANCES}
        VIRTUAL.on_sleep = lambda _: self.wait(5)

    def show_time(self) -> None:
        VIRTUAL.now = self.now
        super().show_time()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.show_time()

    def new_call(
        self, pick: Random, *, is_stored: bool = True, tools: Sequence[str] = ()
    ) -> KnownCall | None:
        number = len(self.calls)
        if number >= MOST_CALLS:
            return None
        fields = {"tool_call_id": f"c{number}", "instance_key": pick.choice(INSTANCES)}
        call = new_call(AGENT, pick.choice([PLAIN, SAFE]), {"n": number}, fields)
        wire, args = serializer.encode(call.to_wire()), serializer.encode(call.args)
        message = queue_element(identity_of(call), call, wire)
        submission = Submission(identity_of(call), call, wire, digest_of(call, args), message)
        known = KnownCall(call, submission, number, is_stored)
        self.calls[known.id] = known
        return known

    @property
    def is_deleting(self) -> bool:
        """Whether an operator is within a deletion."""
        return any(one.program.is_busy for one in self.operators)

    def is_half_done(self, name: str) -> bool:
        """Whether a deletion holds the directory, or was interrupted: opening it restores its files."""
        directory = InstanceDirectory(WORKSPACE, name)
        return any(record.tokens for record in self.table.records([directory]))

    def is_valid(self, held: Held) -> bool:
        """Whether a claim is still that of its call, under a lease that is not over."""
        token = self.redis.hget(self.ledger.keys.call(held.claim.run.id), "token")
        return token == held.claim.token.encode() and self.now < held.renewed_at + LEASE


# What workers do


def open_directory(world: Deletions, pick: Random) -> bool:
    """Open the directory of a claimed call."""
    worker = world.awake(pick, lambda one: _unopened(world, one))
    if worker is None:
        return False
    _open(world, worker, pick.choice(_unopened(world, worker)))
    return True


def _unopened(world: Deletions, worker: Worker) -> list[Held]:
    return worker.held_if(lambda held: held.claim.token not in world.opened)


def _open(world: Deletions, worker: Worker, held: Held) -> None:
    workdirs = world.workdirs.get(worker.process)
    if workdirs is None:
        places = Workdirs(world.state_root, WORKSPACE)
        workdirs = world.workdirs[worker.process] = InstanceWorkdirs(places, world.table)
    call, before = held.claim.run.call, world.now
    world.opened[held.claim.token] = workdirs.open(call.agent_name, call.instance_key)
    world.tell(f"is opened by {worker.name} in {world.now - before:g} s", world.calls[held.claim.run.id])


def begin(world: Deletions, pick: Random) -> bool:
    """Begin a run whose directory is open and whose mark is confirmed: it writes a file."""
    worker = world.awake(pick, lambda one: _ready(world, one))
    if worker is None:
        return False
    held = pick.choice(_ready(world, worker))
    if not held.is_fresh(world.now):
        held.is_marked = False
        return False
    _begin(world, worker, held)
    return True


def _begin(world: Deletions, worker: Worker, held: Held) -> None:
    one, token = world.calls[held.claim.run.id], held.claim.token
    held.has_begun = True
    one.begun.append((worker.name, held.claim.run.attempt))
    world.tell(f"began in {worker.name}", one)
    require_alone(world, one, held)
    _write(world, one, token)


def run_through(world: Deletions, pick: Random) -> bool:
    """Submit a call and take it some way: claim it, open its directory, mark it, begin it, end it."""
    worker = world.awake(pick)
    one = None if worker is None else world.new_call(pick)
    if worker is None or one is None:
        return False
    world.ledger.submit_all([one.submission], "p1")
    world.tell(f"submitted in {one.call.instance_key}", one)
    request = ClaimRequest(one.id, one.call, worker.name, one.terms, worker.new_token(), was_stored=True)
    claim = world.ledger.claim(request).run(world.redis)
    held = worker.held[claim.token] = Held(claim, world.now)
    stages = pick.choice([0, 1, 2, 3, 4, 4, 4, 4])
    if stages > 0:
        _open(world, worker, held)
    if stages > 1:
        [answer] = world.ledger.start([claim.id_and_token]).run(world.redis)
        if answer != Stored.YES:  # the directory was held for longer than the lease
            del worker.held[claim.token]
            return True
        held.note_mark(world.now)
        one.was_marked = True
    if stages > 2:
        _begin(world, worker, held)
    if stages > 3:
        del worker.held[claim.token]
        workers.store_result(world, claim, claim.run.ok({"by": worker.name}, 0.0), pick)
        world.tell(f"ended in {worker.name}", one)
    return True


def _ready(world: Deletions, worker: Worker) -> list[Held]:
    return worker.held_if(
        lambda held: held.is_marked and not held.has_begun and held.claim.token in world.opened
    )


def _write(world: Deletions, one: KnownCall, token: str) -> None:
    name, folder = one.call.instance_key, world.opened[token]
    written = Written(one.id, held_time(world, one), folder / f"{one.number}-{len(one.begun)}")
    try:
        written.path.write_bytes(b"")
    except FileNotFoundError as error:
        if not (world.is_deleting or world.is_half_done(name)):
            raise BrokenPromiseError(f"{world.name(one)} runs in a directory that is deleted") from error
        return
    world.written[token] = written
    world.expected[name].append(written)


def held_time(world: Deletions, one: KnownCall) -> float:
    """Return when a call was accepted, in ms."""
    return world.redis.zscore(world.ledger.keys.calls(one.call.agent_name), one.id) or 0.0


# What operators do


@contextmanager
def _doing(world: Deletions, operator: _Operator, pick: Random, what: str) -> Iterator[None]:
    """Let an operator act; between its trips others do, and it may die."""
    world.note(f"an operator {what}")

    def others(pick: Random) -> None:
        if pick.choice(_OTHERS)(world, pick):
            DELETIONS.check(world)

    try:
        with operator.program.interrupted(pick, others):
            yield
    except ProgramDiedError:
        world.note(f"an operator has died: {what}")
        _note_removed(world, operator, INSTANCES, is_sure=False)
    except (InstanceBusyError, InstanceNotFoundError) as error:
        world.note(f"an operator was refused: {error.message[-90:]}")


def _note_removed(
    world: Deletions, operator: _Operator, names: tuple[str, ...], *, is_sure: bool = True
) -> None:
    """Forget the files of deleted instances: all but those of calls that were accepted since the hold."""
    for name in names:
        is_gone = not any(
            record.parts for record in world.table.records([InstanceDirectory(WORKSPACE, name)])
        )
        if is_sure or is_gone:
            world.expected[name] = [one for one in world.expected[name] if one.queued_at >= operator.held_at]


def delete(world: Deletions, pick: Random) -> bool:
    """Delete an instance, or one agent's part of it."""
    operator = _idle(world)
    if operator is None:
        return False
    name, agent = pick.choice(INSTANCES), pick.choice([None, None, None, AGENT])
    with _doing(world, operator, pick, f"deletes {name} of {agent or 'all'}"):
        _note(world, operator, operator.client.delete_instance(name, agent))
    return True


def collect(world: Deletions, pick: Random) -> bool:
    """Collect the instances that were not used for a while."""
    operator = _idle(world)
    if operator is None:
        return False
    with _doing(world, operator, pick, "collects"):
        _note(world, operator, operator.client.collect_garbage(pick.choice([1.0, 20.0])))
    return True


def _idle(world: Deletions) -> _Operator | None:
    return next((one for one in world.operators if not one.program.is_busy), None)


def _note(world: Deletions, operator: _Operator, removals: list[InstanceRemoval]) -> None:
    for removal in removals:
        world.note(f"{removal.instance_key}: removed {removal.removed}, files {removal.files}")
        if removal.removed and removal.files != "kept":
            _note_removed(world, operator, (Path(removal.path).name,))


def tick(world: Deletions, pick: Random) -> bool:
    """Let time pass."""
    world.wait(pick.choice([0.001, 0.5, 4, 9, 31]))
    return True


# What must be true


def check_files(world: Deletions) -> None:
    """Raise BrokenPromiseError if a file is gone that no deletion may have removed."""
    check(world)
    if world.is_deleting:
        return
    for name in INSTANCES:
        if not world.expected[name] or world.is_half_done(name):
            continue
        for written in world.expected[name]:
            if not written.path.exists() and not _is_kept(written):
                number = world.calls[written.call_id].number
                raise BrokenPromiseError(f"the file of call {number} in {name} is gone")
    for worker in world.workers:
        for held in worker.held.values():
            _require_file(world, held)


def _is_kept(written: Written) -> bool:
    """Whether a directory was put beside one that had taken its place (``InstanceFiles.give_back``)."""
    directory = written.path.parent.parent
    kept = directory.parent.glob(f".kept-*-{directory.name}")
    return any((one / "workspace" / written.path.name).exists() for one in kept)


def _require_file(world: Deletions, held: Held) -> None:
    written = world.written.get(held.claim.token)
    if written is None or not held.has_begun or not world.is_valid(held):
        return
    call, number = held.claim.run.call, world.calls[held.claim.run.id].number
    [record] = world.table.records([InstanceDirectory(WORKSPACE, call.instance_key)])
    if record.part(call.agent_name) is None:
        raise BrokenPromiseError(f"call {number} runs in an instance that is not in the table")
    if not record.tokens and not written.path.exists():
        raise BrokenPromiseError(f"the directory of call {number} was deleted as it ran")


def heal_instances(world: Deletions) -> None:
    """End all faults: half-done deletions are undone when their instances are opened again."""
    heal(world)
    world.wait(60)
    places = InstanceWorkdirs(Workdirs(world.state_root, WORKSPACE), world.table)
    for name in INSTANCES:
        if not places.open(AGENT, name).is_dir():
            raise BrokenPromiseError(f"{name} cannot be opened again")
        if world.is_half_done(name):
            raise BrokenPromiseError(f"the deletion of {name} stays half-done")
    check_files(world)
    operator = world.operators[0]
    for name in INSTANCES:
        removals = operator.client.delete_instance(name)
        if not all(removal.removed for removal in removals):
            raise BrokenPromiseError(f"{name} cannot be deleted: {removals}")
        path = world.state_root / "workspaces" / WORKSPACE / "instances" / name
        with contextlib.suppress(InstanceNotFoundError):
            operator.client.delete_instance(name)
            raise BrokenPromiseError(f"{name} was deleted twice")
        if path.exists():
            raise BrokenPromiseError(f"the files of {name} are still there")


_OTHERS: Any = (
    delete, collect, run_through, run_through, run_through, run_through, open_directory, workers.mark, begin,
    workers.finish, workers.finish, tick, tick, faults.kill, sweeps.sweep, sweeps.settle,
)  # fmt: skip

DELETIONS = Scene(
    "deletions",
    (
        (run_through, 3),
        (producers.submit, 0),
        (producers.cancel, 0),
        (workers.reserve, 1),
        (workers.claim, 0),
        (open_directory, 2),
        (workers.mark, 2),
        (begin, 2),
        (workers.finish, 3),
        (workers.renew, 0),
        (faults.freeze, 0),
        (faults.thaw, 0),
        (faults.kill, 0),
        (sweeps.put_back, 0),
        (sweeps.sweep, 1),
        (sweeps.settle, 3),
        (tick, 1),
        (delete, 5),
        (collect, 1),
    ),
    DeletionsParts,
    Deletions,
    check_files,
    heal_instances,
)
