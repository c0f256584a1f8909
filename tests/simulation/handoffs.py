"""Work between agents: requests, their answers, time limits, and cancels down the chain."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from redis import Redis

from goondan_tasks.authoring.handoff import Asker, Handoff, RepeatableIds, handoff_call, outside_call
from goondan_tasks.contract.errors import (
    GoondanError,
    HandoffCycleError,
    HandoffDepthError,
    HandoffTimeoutError,
    ToolCancelledError,
    ToolError,
    ToolOutcomeUnknownError,
    WaitTimeout,
)
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.contract.names import DELEGATE_RESULT_TOOL, DELEGATE_TOOL
from goondan_tasks.ledger.claim_request import ClaimTerms
from goondan_tasks.ledger.record import CallRecord, Stored
from goondan_tasks.ledger.submission import event_submission
from tests.simulation import faults, producers, sweeps, workers
from tests.simulation.healing import heal
from tests.simulation.invariants import check, require_lease
from tests.simulation.programs import InlineWriter, client_of, without_served_agents
from tests.simulation.scene_world import SceneWorld
from tests.simulation.scenes import Scene
from tests.simulation.workers import store_result
from tests.simulation.world import AGENT, QUEUES, THINKER, BrokenPromiseError, Held, KnownCall, Parts, Worker
from workers.agents.handoffs import Handoffs, Submitted
from workers.cancellation import Cancellation

#: an agent that thinks is run again after the death of its worker
TERMS = ClaimTerms(idempotent=True, max_attempts=50)
MOST_EVENTS = 24
MOST_HOPS = 4
#: how many requests a Turn makes
MOST_REQUESTS = 2


class HandoffsParts(Parts):
    """The parts of the swarm, and a client for each worker."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        without_served_agents(self.reaper)
        named = dict.fromkeys(("goondan.delegate", "goondan.delegate_result", "goondan.event"), TERMS)
        claiming = self.ledger.claim_on_reserve("worker", 3, {QUEUES[1]: named, QUEUES[2]: named})
        self.claiming = [claiming, claiming]
        self.clients = [client_of(redis, self.settings) for _ in range(3)]
        for client in self.clients:
            without_served_agents(client._reaper)
            client._calls._sweeper._due = float("inf")


@dataclass(eq=False)
class Event(KnownCall):
    """An event: all agents of this scene think."""

    @property
    def terms(self) -> ClaimTerms:
        return TERMS


@dataclass(eq=False)
class Turn:
    """A run of an event: what it has asked, and for what it waits."""

    new_id: RepeatableIds
    cancellation: Cancellation = field(default_factory=Cancellation)
    asked: int = 0
    wait: AbstractContextManager[None] | None = None
    child: str = ""
    #: whether it was answered at its time limit, and still runs
    is_late: bool = False


class HandoffWorld(SceneWorld):
    """A swarm whose agents hand work to each other."""

    def __init__(self, parts: HandoffsParts) -> None:
        super().__init__(parts)
        self.clients = parts.clients
        #: by token
        self.turns: dict[str, Turn] = {}
        #: the request that an event has made, by the event's id and the number of the request
        self.children: dict[tuple[str, int], str] = {}

    def new_call(
        self, pick: Random, *, is_stored: bool = True, tools: Sequence[str] = ()
    ) -> KnownCall | None:
        number = len(self.calls)
        if number >= MOST_EVENTS // 2:
            return None
        fields: Any = {"instance_key": pick.choice(["i1", "i2"]), "event_id": f"e{number}"}
        agent, is_request = pick.choice([AGENT, THINKER]), pick.random() < 0.8
        return self.take(outside_call(self.settings, agent, {"n": number}, fields, is_request=is_request))

    def take(self, call: ToolCall) -> KnownCall:
        """Note an event, in the order in which events are accepted."""
        submission = event_submission(call)
        known = self.calls.get(submission.id) or Event(call, submission, len(self.calls))
        return self.calls.setdefault(known.id, known)

    def known(self, call_id: str) -> KnownCall:
        self.adopt()
        return self.calls[call_id]

    def adopt(self) -> None:
        """Note the events that scripts have put into mailboxes."""
        keys = self.ledger.keys
        boxes = [f"{agent}@{instance}" for agent in (AGENT, THINKER) for instance in ("i1", "i2")]
        with self.redis.pipeline(transaction=False) as pipe:
            for box in boxes:
                pipe.lrange(keys.mailbox(box), 0, -1)
            ids = [one.decode() for row in pipe.execute() for one in row]
        unknown = [one for one in ids if one not in self.calls]
        for record in self.ledger.records(unknown) if unknown else []:
            if record is not None:
                self.take(record.call)

    def turn(self, held: Held) -> Turn:
        """Return the Turn of a run that has begun."""
        run = held.claim.run
        return self.turns.setdefault(held.claim.token, Turn(RepeatableIds(run.id)))

    def close(self) -> None:
        """Leave the requests of open waits alone: they would be cancelled once the waits are garbage."""
        for turn in self.turns.values():
            turn.cancellation.set(ToolOutcomeUnknownError("The walk is over."))

    def record(self, call_id: str) -> CallRecord | None:
        return self.ledger.record(call_id)

    def running(self, worker: Worker, *, waits: bool) -> list[Held]:
        """Return the runs of a worker that wait for an answer, or those that do not."""
        return worker.held_if(lambda held: held.has_begun and (self.turn(held).wait is not None) is waits)


# What Turns do


def ask(world: HandoffWorld, pick: Random) -> bool:
    """Let a Turn make its next request: awaited, answered later, or an event without an answer."""
    worker = world.awake(pick, lambda one: _askers(world, one))
    if worker is None:
        return False
    held = pick.choice(_askers(world, worker))
    turn, run, one = world.turn(held), held.claim.run, world.calls[held.claim.run.id]
    plan = Random(f"{run.id} {turn.asked}")  # another run of the Turn asks the same
    target, instance = plan.choice([AGENT, THINKER]), plan.choice(["i1", "i2"])
    kind = plan.choice(["awaited", "awaited", "async", "send"])
    handoff = Handoff(
        target,
        {"input": {"n": turn.asked}, "instanceKey": instance},
        is_request=kind != "send",
        is_awaited=kind == "awaited",
        timeout_ms=plan.choice([None, 60_000.0]),
    )
    number, turn.asked = turn.asked, turn.asked + 1
    asker = Asker.of(run.id, run.call, turn.new_id)
    is_cycle = kind == "awaited" and f"{target}@{instance}" in _waiting_chain(world, one)
    try:
        call = handoff_call(asker, handoff, most_hops=MOST_HOPS, now_ms=world.milliseconds)
    except HandoffDepthError:
        return True
    except HandoffCycleError as error:
        if not is_cycle:
            raise BrokenPromiseError(f"no cycle: {error.message}") from error
        return True
    if is_cycle:
        raise BrokenPromiseError(f"{world.name(one)} waits for {target}@{instance}, which waits for it")
    _submit(world, worker, held, call, number, is_awaited=kind == "awaited")
    return True


def _askers(world: HandoffWorld, worker: Worker) -> list[Held]:
    idle = world.running(worker, waits=False)
    able = [held for held in idle if world.turn(held).asked < MOST_REQUESTS and not world.turn(held).is_late]
    return able if len(world.calls) < MOST_EVENTS else []


def _submit(
    world: HandoffWorld, worker: Worker, held: Held, call: ToolCall, number: int, *, is_awaited: bool
) -> None:
    one, turn = world.calls[held.claim.run.id], world.turn(held)
    child = world.take(call)
    before = world.children.setdefault((one.id, number), child.id)
    if before != child.id:
        raise BrokenPromiseError(f"another run of {world.name(one)} makes its request {number} again")
    client = world.clients[int(worker.name[1])]
    handoffs = Handoffs(world.ledger, cast(Any, InlineWriter(world.redis)), client)
    submitted: Submitted = handoffs.submit_event(call)
    world.tell(f"asks for {world.name(child)}{'' if is_awaited else ', without waiting'}", one)
    if submitted.accepted.exception() is not None:
        raise BrokenPromiseError(f"{world.name(child)} was not accepted: {submitted.accepted.exception()}")
    if is_awaited:
        turn.wait, turn.child = handoffs.awaited([submitted], turn.cancellation), child.id
        turn.wait.__enter__()


def _waiting_chain(world: HandoffWorld, one: KnownCall) -> set[str]:
    """Return the agents that wait while an event is handled, and its own."""
    chain: set[str] = set()
    current: KnownCall | None = one
    while current is not None:
        call = current.call
        chain.add(f"{call.agent_name}@{call.instance_key}")
        is_awaited = call.tool_name == DELEGATE_TOOL and call.args.get("awaited") is True
        current = world.calls.get(call.parent_id or "") if is_awaited else None
    return chain


def receive(world: HandoffWorld, pick: Random) -> bool:
    """Let a Turn go on with the answer that it waits for."""
    worker = world.awake(pick, lambda one: world.running(one, waits=True))
    if worker is None:
        return False
    held = pick.choice(world.running(worker, waits=True))
    turn = world.turn(held)
    child = world.calls[turn.child]
    if world.ledger.result(child.id) is None:
        return False
    assert turn.wait is not None
    turn.wait.__exit__(None, None, None)
    turn.wait = None
    world.tell(f"has the answer of {world.name(child)}", world.calls[held.claim.run.id])
    return True


def give_up(world: HandoffWorld, pick: Random) -> bool:
    """End a wait at its time limit: the asked agent is told to stop."""
    worker = world.awake(pick, lambda one: world.running(one, waits=True))
    if worker is None or pick.random() < 0.6:
        return False
    held = pick.choice(world.running(worker, waits=True))
    _end_wait(world, held, WaitTimeout(world.turn(held).child, 60.0), is_cancelled=True)
    return True


def _end_wait(world: HandoffWorld, held: Held, error: GoondanError, *, is_cancelled: bool) -> None:
    """End a wait with an error; the request must be cancelled, or left alone."""
    turn, one = world.turn(held), world.calls[held.claim.run.id]
    if turn.wait is None:
        return
    child, before = world.calls[turn.child], world.record(turn.child)
    is_open = before is not None and before.status in ("queued", "running", "pending")
    was_cancelled = before is not None and before.is_cancelled
    wait, turn.wait = turn.wait, None
    with suppress(type(error)):
        wait.__exit__(type(error), error, None)
    after = world.record(turn.child)
    world.tell(f"no longer waits for {world.name(child)}: {error.code}", one)
    if after is None or child.is_damaged:
        return
    if is_open and not was_cancelled and after.is_cancelled != is_cancelled:
        what = "is not cancelled" if is_cancelled else "is cancelled"
        raise BrokenPromiseError(f"{world.name(child)} {what} as {error.code} ends the wait")
    child.is_cancelled = child.is_cancelled or after.is_cancelled


def notice_cancel(world: HandoffWorld, pick: Random) -> bool:
    """Let a worker notice that a run is cancelled, and end it."""
    worker = world.awake(pick, lambda one: _cancelled(world, one))
    if worker is None:
        return False
    held = pick.choice(_cancelled(world, worker))
    turn = world.turn(held)
    turn.cancellation.set(ToolCancelledError())
    _end_wait(world, held, ToolCancelledError(), is_cancelled=True)
    del worker.held[held.claim.token]
    turn.cancellation.end()
    if not turn.is_late:
        world.reaper.fail(held.claim, ToolCancelledError())
    else:
        _end_late(world, held)
    return True


def _cancelled(world: HandoffWorld, worker: Worker) -> list[Held]:
    held = worker.held_if(lambda one: one.has_begun)
    marked = (
        world.ledger.cancelled_ids([one.claim.run.id for one in held]).run(world.redis) if held else set()
    )
    return [one for one in held if one.claim.run.id in marked]


def renew(world: HandoffWorld, pick: Random) -> bool:
    """Renew a worker's leases: a run whose claim is lost leaves its request to the one that replaces it."""
    worker = world.awake(pick, lambda one: list(one.held.values()))
    if worker is None:
        return False
    lost = world.ledger.renew([held.claim.id_and_token for held in worker.held.values()]).run(world.redis)
    for token, held in list(worker.held.items()):
        if held.claim.run.id in lost:
            del worker.held[token]
            _lose(world, held)
        else:
            require_lease(world, world.calls[held.claim.run.id])
            held.renewed_at = max(held.renewed_at, world.now)
    return True


def _lose(world: HandoffWorld, held: Held) -> None:
    turn = world.turn(held)
    turn.cancellation.set(ToolOutcomeUnknownError())
    _end_wait(world, held, ToolOutcomeUnknownError(), is_cancelled=False)
    turn.cancellation.end(is_lost=True)


def finish(world: HandoffWorld, pick: Random) -> bool:
    """Store the result of a Turn that waits for nothing."""
    worker = world.awake(pick, lambda one: world.running(one, waits=False))
    if worker is None:
        return False
    held = pick.choice(world.running(worker, waits=False))
    one, turn = world.calls[held.claim.run.id], world.turn(held)
    del worker.held[held.claim.token]
    if turn.is_late:
        _end_late(world, held)
    else:
        run = held.claim.run
        failure = world.reaper.failure(held.claim, ToolError("it failed"), 0.0)
        result = run.ok({"by": worker.name}, 0.0) if pick.random() < 0.7 else failure
        store_result(world, held.claim, result, pick)
    turn.cancellation.end()
    world.tell(f"ended in {worker.name}", one)
    return True


def _end_late(world: HandoffWorld, held: Held) -> None:
    """End a run that was answered at its limit: its own answer comes too late."""
    result = held.claim.run.ok({"late": True}, 0.0)
    world.ledger.finish(held.claim, result, world.reaper.answer(held.claim, result)).run(world.redis)


def answer_at_limit(world: HandoffWorld, pick: Random) -> bool:
    """Answer an event whose handler is past its limit and cannot be interrupted."""
    worker = world.awake(pick, lambda one: world.running(one, waits=False))
    if worker is None or pick.random() < 0.3:
        return False
    held = pick.choice(world.running(worker, waits=False))
    turn, claim = world.turn(held), held.claim
    if turn.is_late:
        return False
    result = world.reaper.failure(claim, HandoffTimeoutError("too late"), 0.0)
    finished = world.ledger.finish(claim, result, world.reaper.answer(claim, result), still_runs=True).run(
        world.redis
    )
    turn.is_late = finished is Stored.YES
    if not turn.is_late:
        del worker.held[claim.token]
        if finished is Stored.CANCELLED:
            world.reaper.fail(claim, ToolCancelledError())
    world.tell("is answered at its limit", world.calls[claim.run.id])
    return True


# What must be true


def check_handoffs(world: HandoffWorld) -> None:
    """Raise BrokenPromiseError if an answer is missing, doubled or in the wrong place."""
    world.adopt()
    check(world)


def heal_handoffs(world: HandoffWorld) -> None:
    """End all faults: every request has one answer, where its asker looks for it."""
    for number in range(len(world.workers)):  # handlers that were answered at their limits end, too
        world.workers[number] = world.new_worker(number)
    for _ in range(20):
        world.now += 4
        world.show_time()
        world.reaper.sweep("sweeper")
    heal(world)
    world.adopt()
    check(world)
    prefix = world.ledger.keys.call("")
    names = cast("list[bytes]", world.redis.keys(f"{prefix}*"))
    records = world.ledger.records(sorted(name.decode().removeprefix(prefix) for name in names))
    answers: dict[str, int] = {}
    for record in records:
        if record is not None and record.call.tool_name == DELEGATE_RESULT_TOOL:
            answers[record.call.parent_id or ""] = answers.get(record.call.parent_id or "", 0) + 1
    for one in world.calls.values():
        call = one.call
        is_later = call.tool_name == DELEGATE_TOOL and call.args["awaited"] is False
        expected = int(is_later and call.args["from"] in (AGENT, THINKER) and not one.is_damaged)
        if answers.get(one.id, 0) != expected:
            raise BrokenPromiseError(
                f"{world.name(one)} has {answers.get(one.id, 0)} answers, not {expected}"
            )


HANDOFFS = Scene(
    "handoffs",
    (
        (producers.submit, 2),
        (producers.cancel, 0),
        (workers.reserve, 3),
        (workers.claim, 1),
        (workers.mark, 3),
        (workers.begin, 3),
        (workers.give_back, 0),
        (ask, 4),
        (receive, 2),
        (give_up, 0),
        (notice_cancel, 1),
        (answer_at_limit, 2),
        (finish, 2),
        (renew, 1),
        (faults.freeze, 0),
        (faults.thaw, 0),
        (faults.kill, 1),
        (faults.oversleep, 0),
        (faults.tick, 1),
        (sweeps.put_back, 0),
        (sweeps.sweep, 1),
        (sweeps.settle, 2),
    ),
    HandoffsParts,
    HandoffWorld,
    check_handoffs,
    heal_handoffs,
)
