"""Dead letters, and what operators do with them: replay, drop and purge, also two at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from math import inf
from random import Random
from typing import Any, cast

from redis import Redis

from broker_config import serializer
from goondan_tasks.client.submitter import may_be_replayed
from goondan_tasks.contract.calls import new_call, queue_element
from goondan_tasks.contract.errors import CallNotFoundError, NotReplayableError
from goondan_tasks.contract.events import is_event, mailbox_of
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.contract.names import NO_CALL_TOOL
from goondan_tasks.fleet.agent_registry import AgentRecord
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.record import CallRecord, Stored, Verdict
from goondan_tasks.ledger.submission import Submission, call_json, digest_of, event_submission
from tests.simulation import faults, producers, sweeps, workers
from tests.simulation.healing import heal
from tests.simulation.invariants import check
from tests.simulation.programs import Operator, show_virtual_time, without_served_agents
from tests.simulation.scene_world import SceneWorld
from tests.simulation.scenes import Scene
from tests.simulation.scripts import load_scripts
from tests.simulation.trips import ProgramDiedError
from tests.simulation.world import (
    AGENT,
    PLAIN,
    QUEUES,
    SAFE,
    THINKER,
    BrokenPromiseError,
    KnownCall,
    Parts,
)

#: a call with these terms is a dead letter after the first death of a worker
DEADLY = ClaimTerms(idempotent=True, max_attempts=1)
GARBAGE = ("not JSON", "[]", "x" * 3000)


class LettersParts(Parts):
    """The parts of the swarm, and two programs of operators."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        show_virtual_time(redis)
        without_served_agents(self.reaper)
        self.operators = [Operator(redis, self.settings) for _ in range(2)]
        load_scripts(redis)


class Letters(SceneWorld):
    """A swarm in which calls become dead letters."""

    def __init__(self, parts: LettersParts) -> None:
        super().__init__(parts)
        self.operators = parts.operators
        agents = [AgentRecord(name=name, swarm="s", workspace="w") for name in (AGENT, THINKER)]
        rows: Any = {agent.name: serializer.encode(agent.to_wire()) for agent in agents}
        self.redis.hset(self.ledger.keys.agents, mapping=rows)
        for operator in self.operators:
            operator.client.agents()  # known from now on
        #: letters that were dropped, and those that may be: the program died, or another one is about to
        self.dropped: set[str] = set()
        self.maybe_dropped: set[str] = set()
        #: the call that an operator replays just now
        self.at_work = ""
        #: the filters of the purges that are under way
        self.purges: list[Any] = []
        #: by replayed call: how often it may have been replayed although it was replayed before
        self.again: dict[str, int] = {}
        #: by replayed call: the highest number of replays that was seen
        self.replays: dict[str, int] = {}

    def known(self, call_id: str) -> KnownCall:
        """Return a call; those that operators made become known when they are seen."""
        if call_id not in self.calls:
            self.records()
        return super().known(call_id)

    def idle_operator(self) -> Operator | None:
        return next((one for one in self.operators if not one.program.is_busy), None)

    def letters(self) -> set[str]:
        """Return the calls that are dead letters, as the indexes say."""
        with self.redis.pipeline(transaction=False) as pipe:
            for agent in (AGENT, THINKER):
                pipe.zrange(self.ledger.keys.dead_letters(agent), 0, -1)
            return {one.decode() for row in pipe.execute() for one in row}

    def records(self) -> dict[str, CallRecord]:
        """Return the records of all calls that can be read; calls that operators made become known."""
        prefix = self.ledger.keys.call("")
        names = cast("list[bytes]", self.redis.keys(f"{prefix}*"))
        ids = sorted(name.decode().removeprefix(prefix) for name in names)
        found = {one.id: one for one in self.ledger.records(ids) if one is not None}
        new = [one for one in found.values() if one.id not in self.calls]
        for record in sorted(new, key=lambda one: (one.queued_at, self._place(one), one.id)):
            self.calls[record.id] = KnownCall(record.call, _submission(self, record), len(self.calls))
        return found

    def _place(self, record: CallRecord) -> int:
        """Return the place of an event in its mailbox, the order of those that one script has accepted."""
        if not is_event(record.call):
            return 0
        ids = cast("list[bytes]", self.redis.lrange(self.ledger.keys.mailbox(mailbox_of(record.call)), 0, -1))
        return ids.index(record.id.encode()) if record.id.encode() in ids else -1

    def lives(self, records: dict[str, CallRecord], call_id: str) -> set[str]:
        """Return the calls that replay a call."""
        return {one.id for one in records.values() if one.call.replay_of == call_id}


def _submission(world: Letters, record: CallRecord) -> Submission:
    call = record.call
    if is_event(call):
        return event_submission(call)
    args = serializer.encode(call.args)
    wire = call_json(call, args)
    return Submission(record.id, call, wire, digest_of(call, args), queue_element(record.id, call, wire))


# What makes letters


def kill_with_call(world: Letters, pick: Random) -> bool:
    """Let a call kill each worker that runs it, until it is a dead letter."""
    ready = [
        one for one in world.calls.values() if one.is_stored and not one.begun and _is_queued(world, one)
    ]
    one = world.choose(pick, ready)
    if one is None:
        return False
    worker = world.new_worker(9)
    request = ClaimRequest(one.id, one.call, worker.name, DEADLY, worker.new_token(), was_stored=True)
    ledger = world.ledger
    script = (
        ledger.claim_event(request, one.submission.message, is_handled_here=True)
        if one.is_event
        else ledger.claim(request)
    )
    claim = script.run(world.redis)
    if claim.verdict is not Verdict.RUN:
        if claim.is_ours:
            world.reaper.settle(claim)
        return False
    [answer] = ledger.start([claim.id_and_token]).run(world.redis)
    if answer != Stored.YES:
        raise BrokenPromiseError(f"{world.name(one)} was claimed and cannot start")
    one.was_marked = True
    one.begun.append((worker.name, claim.run.attempt))
    world.tell(f"kills {worker.name}", one)
    ledger.end_leases(worker.process).run(world.redis)
    if pick.random() < 0.8:
        sweeps.sweep(world, pick)
    return True


def _is_queued(world: Letters, one: KnownCall) -> bool:
    return not one.is_cancelled and world.status(one) == b"queued"


def bury(world: Letters, pick: Random) -> bool:
    """Let a worker make a letter of a message that holds no call."""
    operator = world.idle_operator()
    if operator is None:
        return False
    queue, text = pick.choice(QUEUES), pick.choice(GARBAGE)
    with _doing(world, operator, pick, "buries a message"):
        operator.delivery.bury(queue, "w9", "it holds no call", text)
    return True


def bury_conflict(world: Letters, pick: Random) -> bool:
    """Let a worker find a plain Celery message whose id is that of another call."""
    operator = world.idle_operator()
    stored = [one for one in world.calls.values() if not one.is_event and one.call.tool_name != NO_CALL_TOOL]
    one = world.choose(pick, [one for one in stored if not one.is_damaged and world.status(one)])
    if operator is None or one is None:
        return False
    before = world.redis.hgetall(world.ledger.keys.call(one.id))
    fields = {
        "tool_call_id": one.id,
        "trace_id": "0" * 32,
        "span_id": "0" * 16,
    }  # else the letter's id is new
    call = new_call(AGENT, PLAIN, {"other": one.number}, fields)
    request = ClaimRequest(one.id, call, "w9", ClaimTerms(), world.new_worker(9).new_token(), must_match=True)
    claim = world.ledger.claim(request).run(world.redis)
    if claim.verdict is not Verdict.TAKEN or world.redis.hgetall(world.ledger.keys.call(one.id)) != before:
        raise BrokenPromiseError(f"a message with other arguments touched {world.name(one)}: {claim.verdict}")
    with _doing(world, operator, pick, f"buries a conflict with {world.name(one)}"):
        operator.delivery.settle(claim)
    return True


# What operators do


@contextmanager
def _doing(world: Letters, operator: Operator, pick: Random, what: str) -> Iterator[None]:
    """Let an operator act; between its trips others do, and it may die."""
    world.note(f"an operator {what}")

    def others(pick: Random) -> None:
        deed = replay if world.at_work and pick.random() < 0.5 else pick.choice(_OTHERS)
        if deed(world, pick):
            LETTERS.check(world)

    try:
        with operator.program.interrupted(pick, others):
            yield
    except ProgramDiedError:
        world.note(f"an operator has died: {what}")
    except (NotReplayableError, CallNotFoundError) as error:
        world.note(f"an operator was refused: {error.message[-60:]}")


def replay(world: Letters, pick: Random) -> bool:
    """Replay a call that has ended, sometimes once more."""
    operator, records = world.idle_operator(), world.records()
    ended = [one for one in records.values() if one.status in ("done", "dead")]
    letters = [one for one in ended if one.status == "dead"]
    old = _any(pick, letters if letters and pick.random() < 0.6 else ended)
    if world.at_work in records and pick.random() < 0.7:  # two operators look at the same list
        old = records[world.at_work]
    if operator is None or old is None:
        return False
    again = pick.random() < 0.4
    if again:
        world.again[old.id] = world.again.get(old.id, 0) + 1
    number = world.calls[old.id].number
    world.at_work = world.at_work or old.id
    with _doing(world, operator, pick, f"replays {number}{' again' if again else ''}"):
        new = operator.client.replay(old.id, again=again).id
        if old.outcome == "ok" or old.call.tool_name == NO_CALL_TOOL:
            raise BrokenPromiseError(
                f"{number} was replayed, although it is {old.outcome} {old.call.tool_name}"
            )
        _require_noted(world, old.id, new)
    if not any(one.program.is_busy for one in world.operators):
        world.at_work = ""
    return True


def _any(pick: Random, records: list[CallRecord]) -> CallRecord | None:
    ordered = sorted(records, key=lambda one: one.id)
    return pick.choice(ordered) if ordered else None


def replay_all(world: Letters, pick: Random) -> bool:
    """Replay all letters that a filter selects and that were not replayed before."""
    operator, wanted = world.idle_operator(), _filter(pick)
    if operator is None:
        return False
    before = world.records()
    with _doing(world, operator, pick, f"replays all {wanted}"):
        for old, new in operator.client.act_on_all("replay", **wanted).replays.items():
            if not may_be_replayed(before.get(old) or world.records()[old]):
                raise BrokenPromiseError(f"{old} was replayed with all others, although it was before")
            _require_noted(world, old, new)
    return True


def _require_noted(world: Letters, old: str, new: str) -> None:
    """Raise BrokenPromiseError if a replay that has ended is not noted in the replayed call."""
    records = world.records()
    if new in world.calls and world.calls[new].is_damaged:
        return  # another operator has made the same replay, and its record was overwritten since
    if new not in records or records[new].call.replay_of != old:
        raise BrokenPromiseError(f"there is no replay {new} of {old}")
    noted, lives = records[old], world.lives(records, old)
    if noted.replayed_by not in lives or not noted.replays:
        raise BrokenPromiseError(f"{old} does not name its replay {new}")


def drop(world: Letters, pick: Random) -> bool:
    """Drop one letter."""
    operator, one = world.idle_operator(), world.choose(pick, sorted_letters(world))
    if operator is None or one is None:
        return False
    world.maybe_dropped.add(one.id)
    with _doing(world, operator, pick, f"drops {one.number}"):
        operator.client.drop(one.id)
        world.dropped.add(one.id)
    return True


def sorted_letters(world: Letters) -> list[KnownCall]:
    """Return the calls that are letters, and those that were, in their order."""
    world.records()
    ids = world.letters() | world.dropped
    return sorted((world.calls[one] for one in ids if one in world.calls), key=lambda one: one.number)


def purge(world: Letters, pick: Random) -> bool:
    """Drop all letters that a filter selects."""
    operator, wanted = world.idle_operator(), _filter(pick)
    if operator is None:
        return False
    before = _selected(world, wanted)
    world.maybe_dropped |= before
    world.purges.append(wanted)
    with _doing(world, operator, pick, f"purges {wanted}"):
        operator.client.act_on_all("drop", **wanted)
        world.dropped |= before
    _note_purged(world)
    world.purges.remove(wanted)
    return True


def _note_purged(world: Letters) -> None:
    """Note what purges may have dropped that was no letter, or younger, when they began."""
    for wanted in world.purges:
        world.maybe_dropped |= _selected(world, wanted) - world.letters()


def list_letters(world: Letters, pick: Random) -> bool:
    """List letters: exactly those that the filter selects are shown, the latest first."""
    operator, wanted = world.idle_operator(), _filter(pick)
    if operator is None:
        return False
    shown = operator.client.dead_letters(limit=None, **wanted)
    if {one.id for one in shown} != _selected(world, wanted):
        raise BrokenPromiseError(
            f"the letters of {wanted} are {sorted(_selected(world, wanted))}, not {shown}"
        )
    times = [one.finished_at or 0 for one in shown]
    if times != sorted(times, reverse=True):
        raise BrokenPromiseError(f"the letters are not listed in their order: {times}")
    return False


def _filter(pick: Random) -> Any:
    tool = pick.choice([None, None, PLAIN, SAFE, "bash__*", "(no call)"])
    older = pick.choice([None, None, 1.0, 30.0])
    return {"tool": tool, "older_than": older, "agent": pick.choice([None, None, AGENT])}


def _selected(world: Letters, wanted: Any) -> set[str]:
    """Return the letters that a filter selects, found without the indexes."""
    older = wanted["older_than"]
    latest = inf if older is None else world.milliseconds - older * 1000
    return {
        one.id
        for one in world.records().values()
        if one.status == "dead"
        and (one.id not in world.dropped)
        and (one.id not in world.maybe_dropped or one.id in world.letters())
        and (wanted["tool"] is None or fnmatchcase(one.call.tool_name, wanted["tool"]))
        and (wanted["agent"] in (None, one.call.agent_name))
        and (one.finished_at or 0) <= latest
    }


# What must be true


def check_letters(world: Letters) -> None:
    """Raise BrokenPromiseError if the letters and their replays are not as they must be."""
    check(world)
    _note_purged(world)
    records, indexed = world.records(), world.letters()
    for one in records.values():
        if one.status == "dead" and one.id not in indexed and one.id not in world.maybe_dropped:
            raise BrokenPromiseError(f"{one.id} is dead and no letter")
        if one.call.tool_name == NO_CALL_TOOL and (one.status == "done" or world.calls[one.id].begun):
            raise BrokenPromiseError(f"{one.id} holds no call and was run")
        lives = world.lives(records, one.id)
        if len(lives) > 1 + world.again.get(one.id, 0):
            raise BrokenPromiseError(f"{world.calls[one.id].number} was replayed {len(lives)} times")
        if one.replays < world.replays.get(one.id, 0):
            raise BrokenPromiseError(f"{world.calls[one.id].number} forgets how often it was replayed")
        world.replays[one.id] = one.replays
        _check_life(world, records, one)
    for call_id in indexed:
        if call_id in world.dropped:
            raise BrokenPromiseError(f"{call_id} is a letter again, although it was dropped")
        if call_id in records and records[call_id].status != "dead":
            raise BrokenPromiseError(f"{call_id} is a letter and {records[call_id].status}")


def _check_life(world: Letters, records: dict[str, CallRecord], one: CallRecord) -> None:
    """Raise BrokenPromiseError if a replay is not what it replays."""
    old = records.get(one.call.replay_of or "")
    if old is None:
        return
    if (old.call.args, old.call.tool_name) != (one.call.args, one.call.tool_name):
        raise BrokenPromiseError(f"{one.id} replays another call than {old.id}")
    if one.result is not None and ToolCallResult.from_json(one.result).meta.replay_of != old.id:
        raise BrokenPromiseError(f"the result of {one.id} does not name {old.id}")


def heal_letters(world: Letters) -> None:
    """End all faults: every replay ends, too, and no letter is lost."""
    world.records()
    heal(world)
    check_letters(world)


_OTHERS = (
    replay, replay_all, drop, purge, kill_with_call, kill_with_call, bury, sweeps.sweep, sweeps.settle,
    workers.reserve, workers.claim, workers.mark, workers.begin, workers.finish, faults.kill,
    producers.cancel,
)  # fmt: skip

LETTERS = Scene(
    "letters",
    (
        (producers.submit, 3),
        (producers.send_plain_message, 0),
        (producers.cancel, 0),
        (workers.reserve, 1),
        (workers.claim, 0),
        (workers.mark, 1),
        (workers.begin, 1),
        (workers.finish, 1),
        (workers.renew, 0),
        (workers.give_back, 0),
        (faults.kill, 0),
        (faults.freeze, 0),
        (faults.thaw, 0),
        (faults.damage, 0),
        (faults.tick, 1),
        (sweeps.put_back, 0),
        (sweeps.sweep, 2),
        (sweeps.settle, 3),
        (kill_with_call, 5),
        (bury, 1),
        (bury_conflict, 0),
        (replay, 3),
        (replay_all, 1),
        (drop, 1),
        (purge, 0),
        (list_letters, 1),
    ),
    LettersParts,
    Letters,
    check_letters,
    heal_letters,
)
