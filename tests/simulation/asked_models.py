"""Turns that ask models through calls: a run that replaces another one gets the same answers, paid once."""

from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from redis import Redis

from broker_config import serializer
from broker_config.scripts import ScriptCall
from goondan_tasks.authoring.handoff import outside_call
from goondan_tasks.contract.calls import identity_of, new_call, queue_element
from goondan_tasks.contract.messages import JsonObject, ToolCall, ToolCallResult
from goondan_tasks.contract.names import SYSTEM_TOOL
from goondan_tasks.ledger.claim_request import ClaimTerms
from goondan_tasks.ledger.submission import Submission, call_json, digest_of, event_submission
from tests.simulation import faults, producers, sweeps, workers
from tests.simulation.healing import heal
from tests.simulation.invariants import check, require_alone
from tests.simulation.programs import without_served_agents
from tests.simulation.scene_world import SceneWorld
from tests.simulation.scenes import Scene
from tests.simulation.scripts import load_scripts
from tests.simulation.trips import Program, ProgramDiedError
from tests.simulation.world import AGENT, LEASE, QUEUES, BrokenPromiseError, Held, KnownCall, Parts, Worker
from workers.cancellation import Cancellation
from workers.thinking.model_calls import AskedRequests, ModelCallError, Models, ask_model_script, tool_part
from workers.thinking.model_request import ModelAnswer, ModelRequest
from workers.turns.steps import patiently

MODEL = "m"
MODEL_TOOL = f"{SYSTEM_TOOL}__{tool_part(MODEL)}"
TERMS = ClaimTerms(idempotent=True, max_attempts=50)
MOST_EVENTS = 4
#: how many requests a Turn makes
REQUESTS = 2
_ROUNDS = 80
_USAGE = {"input": 1, "output": 1, "cached": 0, "reasoning": 0}


class ModelsParts(Parts):
    """The parts of the swarm, and a connection for each worker."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        without_served_agents(self.reaper)
        named = dict.fromkeys(("goondan.delegate", "goondan.delegate_result", "goondan.event"), TERMS)
        claiming = self.ledger.claim_on_reserve(
            "worker", 3, {QUEUES[0]: {MODEL_TOOL: TERMS}, QUEUES[2]: named}
        )
        self.claiming = [claiming, claiming]
        self.programs = [Program(redis, others_act=0.3) for _ in range(3)]
        load_scripts(redis)


class ModelsCall(KnownCall):
    """An event, or a call that asks a model."""

    @property
    def terms(self) -> ClaimTerms:
        return TERMS


class _Results:
    """Waits for the results of calls; the walk looks for them."""

    def __init__(self, look: Callable[[], list[ToolCallResult] | None]) -> None:
        self._look = look

    def __await__(self) -> Generator[None, None, list[ToolCallResult]]:
        while (found := self._look()) is None:
            yield
        return found


@dataclass(eq=False)
class Thinking:
    """A run of a Turn: its coroutine, and the answers that it has got."""

    models: Models
    coroutine: Coroutine[Any, Any, None]
    answers: list[str]
    is_over: bool = False


class ModelsWorld(SceneWorld):
    """A swarm with an agent that thinks."""

    def __init__(self, parts: ModelsParts) -> None:
        self.parts = parts
        super().__init__(parts)
        #: by token
        self.thinkings: dict[str, Thinking] = {}
        #: by the id of the call that asks a model: the event, and the number of the request in its Turn
        self.places: dict[str, tuple[str, int]] = {}
        #: by place: the call that was answered, and the answer
        self.answered: dict[tuple[str, int], tuple[str, str]] = {}
        self.requests = 0

    def new_worker(self, number: int) -> Worker:
        self.parts.programs[number].begin_again()
        return super().new_worker(number)

    def new_call(
        self, pick: Random, *, is_stored: bool = True, tools: Sequence[str] = ()
    ) -> KnownCall | None:
        number = sum(one.is_event for one in self.calls.values())
        if number >= MOST_EVENTS:
            return None
        fields: Any = {"instance_key": pick.choice(["i1", "i2"]), "event_id": f"e{number}"}
        call = outside_call(self.settings, AGENT, {"n": number}, fields, is_request=True)
        submission = event_submission(call)
        return self.calls.setdefault(submission.id, ModelsCall(call, submission, len(self.calls)))

    def close(self) -> None:
        """End the Turns that nobody goes on with."""
        for thinking in self.thinkings.values():
            thinking.coroutine.close()

    def program(self, worker: Worker) -> Program:
        return self.parts.programs[int(worker.name[1])]

    def submit(self, call: ToolCall, place: tuple[str, int]) -> str:
        """Submit a call that asks a model, and note what it is for."""
        args = serializer.encode(call.args)
        wire = call_json(call, args)
        call_id = identity_of(call)
        message = queue_element(call_id, call, wire)
        submission = Submission(call_id, call, wire, digest_of(call, args), message)
        self.calls.setdefault(call_id, ModelsCall(call, submission, len(self.calls)))
        self.places.setdefault(call_id, place)
        self.ledger.submit_all([submission], "p1")
        return call_id

    def is_valid(self, held: Held) -> bool:
        """Whether a claim is still that of its call, under a lease that is not over."""
        token = self.redis.hget(self.ledger.keys.call(held.claim.run.id), "token")
        return token == held.claim.token.encode() and self.now < held.renewed_at + LEASE


def _think(world: ModelsWorld, worker: Worker, held: Held) -> Thinking:
    """Begin a run of a Turn that asks a model some times; what it asks differs from run to run."""
    run, answers = held.claim.run, []  # type: ignore[var-annotated]

    def make(tool: str, args: JsonObject) -> ToolCall:
        return new_call(
            AGENT, tool, args, {"instance_key": run.call.instance_key, "turn_id": run.call.turn_id}
        )

    def results(calls: Sequence[ToolCall]) -> _Results:
        [call_id] = [world.submit(call, (run.id, len(answers))) for call in calls]

        def look() -> list[ToolCallResult] | None:
            result = world.ledger.result(call_id)
            return None if result is None else [result]

        return _Results(look)

    asker = SimpleNamespace(name=AGENT, instance_key=run.call.instance_key)
    redis, keys = world.program(worker).redis, world.ledger.keys

    def post(script_call: ScriptCall[Any], *, is_awaited: bool) -> "Future[Any]":
        answer: Future[Any] = Future()
        answer.set_result(patiently(partial(script_call.run, redis)))
        return answer

    tools: Any = SimpleNamespace(
        asker=asker,
        new_call=make,
        results=results,
        cancellation=Cancellation(),
        handoffs=SimpleNamespace(post=post),
    )
    asked = AskedRequests(
        run.call.turn_id, keys.asked_models(f"{run.id}.{run.retries}"), "t", 86_400, run.attempt > 1
    )
    resources: Any = {MODEL: SimpleNamespace(name=MODEL, spec=SimpleNamespace(timeout_seconds=60.0))}
    models = Models(
        tools, redis, keys, 3600.0, resources, Path(), lambda: None, {}, ask_model_script(), asked
    )

    async def think() -> None:
        for step in range(REQUESTS):
            world.requests += 1
            request = ModelRequest(f"request {world.requests}", ())
            answer, _ = await models.ask(MODEL, request, step=step, event_id=run.id)
            answers.append(answer.text)

    return Thinking(models, think(), answers)


def _runs(world: ModelsWorld, worker: Worker, *, has_begun: bool, is_event: bool) -> list[Held]:
    if world.program(worker).is_busy:
        return []
    return worker.held_if(
        lambda held: (
            held.is_marked
            and held.has_begun is has_begun
            and world.known(held.claim.run.id).is_event is is_event
        )
    )


def begin(world: ModelsWorld, pick: Random) -> bool:
    """Begin a marked Turn, or send a marked request to the model."""
    worker = world.awake(pick, lambda one: _unbegun(world, one))
    if worker is None:
        return False
    held = pick.choice(_unbegun(world, worker))
    if not held.is_fresh(world.now):
        held.is_marked = False
        return False
    one = world.known(held.claim.run.id)
    held.has_begun = True
    one.begun.append((worker.name, held.claim.run.attempt))
    world.tell(f"began in {worker.name}, attempt {held.claim.run.attempt}", one)
    require_alone(world, one, held)
    if one.is_event:
        world.thinkings[held.claim.token] = _think(world, worker, held)
        return True
    known = world.answered.get(world.places[one.id])
    if known is not None:
        raise BrokenPromiseError(f"{world.name(one)} is sent although {known} answers it")
    return True


def _unbegun(world: ModelsWorld, worker: Worker) -> list[Held]:
    return [
        held
        for is_event in (False, True)
        for held in _runs(world, worker, has_begun=False, is_event=is_event)
    ]


def answer(world: ModelsWorld, pick: Random) -> bool:
    """Store the answer of a model."""
    worker = world.awake(pick, lambda one: _runs(world, one, has_begun=True, is_event=False))
    if worker is None:
        return False
    held = pick.choice(_runs(world, worker, has_begun=True, is_event=False))
    run, one = held.claim.run, world.known(held.claim.run.id)
    text = f"answer of {worker.name} to {one.number}"
    output = ModelAnswer(content=({"type": "text", "text": text},), usage=_USAGE)
    worker.held.pop(held.claim.token)
    workers.store_result(world, held.claim, run.ok(output.to_wire(), 0.0), pick)
    stored = world.ledger.result(one.id)
    if stored is not None and stored.status == "ok" and text in str(stored.output):
        world.answered[world.places[one.id]] = one.id, text
        world.tell("is answered", one)
    return True


def think(world: ModelsWorld, pick: Random) -> bool:
    """Let a Turn go on until it waits for an answer, or ends; its worker may die meanwhile."""
    worker = world.awake(pick, lambda one: _runs(world, one, has_begun=True, is_event=True))
    if worker is None:
        return False
    held = pick.choice(_runs(world, worker, has_begun=True, is_event=True))
    thinking, one = world.thinkings[held.claim.token], world.known(held.claim.run.id)
    if not world.is_valid(held):  # it is told so at its next renewal
        worker.held.pop(held.claim.token)
        return False
    program = world.program(worker)
    try:
        if world.is_healing:
            _go_on(thinking)
        else:
            with program.interrupted(pick, lambda pick: pick.choice(_OTHERS)(world, pick)):
                _go_on(thinking)
    except ProgramDiedError:
        world.note(f"{worker.name} has died in {world.name(one)}")
        if worker in world.workers:
            world.end(worker)
        return True
    for number, text in enumerate(thinking.answers):
        if world.answered.get((one.id, number), ("", ""))[1] != text:
            raise BrokenPromiseError(f"{world.name(one)} got {text!r}, not {world.answered}")
    if thinking.is_over and held.claim.token in worker.held:
        worker.held.pop(held.claim.token)
        workers.store_result(world, held.claim, held.claim.run.ok({"by": worker.name}, 0.0), pick)
        world.tell(f"ended in {worker.name}", one)
    return True


def _go_on(thinking: Thinking) -> None:
    try:
        thinking.coroutine.send(None)
    except (StopIteration, ModelCallError):  # the call that asks has expired
        thinking.is_over = True


def check_models(world: ModelsWorld) -> None:
    """Raise BrokenPromiseError if a result has changed."""
    check(world)


def heal_models(world: ModelsWorld) -> None:
    """End all faults: every Turn ends with the answers that were paid for."""
    world.is_healing = True
    for number in range(len(world.workers)):
        world.workers[number] = world.new_worker(number)
    world.swept.clear()
    pick = Random(1)
    for _ in range(_ROUNDS):
        world.now += 4
        world.show_time()
        world.reaper.sweep("sweeper")
        world.in_flight.give_back(world.in_flight.overdue(1))
        for _ in range(8):
            for step in (workers.reserve, workers.claim, workers.mark, begin, answer, think):
                step(world, pick)
        check_models(world)
        if all(one.result is not None for one in world.calls.values()):
            break
    else:
        raise BrokenPromiseError("a Turn or a request never ends")
    heal(world)


_OTHERS: tuple[Callable[..., bool], ...] = (
    workers.reserve, workers.mark, begin, answer, answer, think, sweeps.sweep, workers.renew,
)  # fmt: skip

MODELS = Scene(
    "models",
    (
        (producers.submit, 2),
        (workers.reserve, 5),
        (workers.claim, 1),
        (workers.mark, 6),
        (begin, 6),
        (answer, 3),
        (think, 6),
        (workers.renew, 2),
        (workers.give_back, 0),
        (faults.kill, 1),
        (faults.tick, 1),
        (sweeps.put_back, 0),
        (sweeps.sweep, 2),
        (sweeps.settle, 3),
    ),
    ModelsParts,
    ModelsWorld,
    check_models,
    heal_models,
    grave=("kill", "give_back"),
)
