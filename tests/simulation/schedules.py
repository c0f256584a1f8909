"""Schedules that several workers fire, while operators and newer bundles change them and workers die."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from redis import Redis

from goondan_tasks.contract.messages import epoch_milliseconds
from goondan_tasks.contract.schedules import Schedule
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.schedules import RUN_TIME, ScheduleState, ScheduleStore
from tests.simulation import faults, producers, sweeps, workers
from tests.simulation.healing import heal
from tests.simulation.invariants import check
from tests.simulation.outages import FAULT, take
from tests.simulation.programs import show_virtual_time, without_served_agents
from tests.simulation.refusals import Refusal
from tests.simulation.scene_world import SceneWorld
from tests.simulation.scenes import Scene
from tests.simulation.scripts import load_scripts
from tests.simulation.trips import Program, ProgramDiedError
from tests.simulation.world import AGENT, BrokenPromiseError, Parts

OWNER = "shop"
NAMES = ("a", "b", "c")
_INTERVALS = (90, 600, 1800)
#: how much time passes at once, in seconds
_TICKS = (1, 4, 9, 30, 61, 200, 1500)


class Watcher:
    """A worker that fires schedules, with connections of its own."""

    def __init__(self, redis: Redis, settings: Any) -> None:
        self.program = Program(redis, others_act=0.5)
        show_virtual_time(self.program.redis)
        ledger = Ledger(self.program.redis, settings)
        self.store = ScheduleStore(ledger)
        self.reaper = without_served_agents(Reaper(ledger, "https://help/"))


class SchedulesParts(Parts):
    """The parts of the swarm, and two workers that look at schedules."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        show_virtual_time(redis)
        without_served_agents(self.reaper)
        self.store = ScheduleStore(self.ledger)
        self.watchers = [Watcher(redis, self.settings) for _ in range(2)]
        load_scripts(redis)


@dataclass
class Kept:
    """A schedule as it must be in Redis."""

    schedule: Schedule
    #: the slot that comes first, and how many were dealt with before it
    first: int
    before: int = 0
    is_paused: bool = False
    by_hand: int = 0
    #: how many slots were given up when it was written last
    given_up: int = 0
    #: slots that were counted by a script that stopped before it went on
    counted_twice: int = 0

    @property
    def every(self) -> int:
        return self.schedule.timing.every_seconds * 1000


class SchedulesWorld(SceneWorld):
    """A swarm with schedules."""

    def __init__(self, parts: SchedulesParts) -> None:
        self.store, self.watchers = parts.store, parts.watchers
        self.kept: dict[str, Kept] = {}
        self.since = 0
        super().__init__(parts)

    def states(self) -> dict[str, ScheduleState]:
        return {one.schedule.name: one for one in self.store.all()}

    def first_after_now(self, one: Schedule) -> int:
        slot = one.timing.next(int(self.now * 1000))
        assert slot is not None
        return slot

    def dealt_with(self, name: str) -> int:
        """Return how many slots of a schedule were fired or given up."""
        state = self.states()[name]
        return state.fired + state.skipped + state.missed + state.damaged - self.kept[name].by_hand


def _schedule(pick: Random, name: str, owner: str) -> Schedule:
    catch_up = pick.choice(["skip", "once", "all", "all"])
    fields: dict[str, Any] = {
        "name": name,
        "owner": owner,
        "every": f"{pick.choice(_INTERVALS)}s",
        "agent": AGENT,
        "input": pick.randrange(3),
        "catchUp": catch_up,
        "catchUpLimit": 1000,
        "overlap": "queue" if catch_up == "all" else pick.choice(["queue", "skip", "cancel"]),
        "instanceKey": pick.choice(["default", "other", "{{slot}}"]),
    }
    return Schedule.from_wire(fields)


# What operators, bundles and workers do


def write(world: SchedulesWorld, pick: Random) -> bool:
    """Load a newer bundle, with some schedules added, changed and removed; one is made at run time."""
    wanted = {name: _schedule(pick, name, OWNER) for name in pick.sample(NAMES, pick.choice([1, 2, 2, 3]))}
    for name, kept in world.kept.items():  # most stay as they were, or nearly
        if name in wanted and pick.random() < 0.6:
            wanted[name] = kept.schedule.model_copy(update={"input": pick.randrange(3)})
    world.since += 1
    if not world.store.keep(OWNER, list(wanted.values()), world.since):
        raise BrokenPromiseError("a newer bundle was refused")
    if pick.random() < 0.3:
        wanted["now"] = _schedule(pick, "now", RUN_TIME)
        world.store.put(wanted["now"])
    elif "now" in world.kept:
        wanted["now"] = world.kept["now"].schedule
    world.note(f"the schedules are {', '.join(sorted(wanted))}")
    before, world.kept = world.kept, {}
    for name, one in sorted(wanted.items()):
        old = before.get(name)
        world.kept[name] = kept = Kept(one, world.first_after_now(one))
        if old is None:
            continue
        kept.is_paused, kept.by_hand, kept.before = old.is_paused, old.by_hand, old.before
        kept.counted_twice = old.counted_twice
        kept.given_up = _given_up(world.states()[name])
        if old.schedule.timing == one.timing:
            kept.first = old.first
        else:
            kept.before = world.dealt_with(name)
    return True


def write_older(world: SchedulesWorld, pick: Random) -> bool:
    """Let a worker write the schedules of a bundle that it has loaded earlier."""
    if not world.since:
        return False
    if world.store.keep(OWNER, [_schedule(pick, "old", OWNER)], world.since - 1):
        raise BrokenPromiseError("an older bundle has replaced a newer one")
    return True


def pause_or_resume(world: SchedulesWorld, pick: Random) -> bool:
    """Pause a schedule, or let it go on."""
    if not world.kept:
        return False
    name = pick.choice(sorted(world.kept))
    kept = world.kept[name]
    if not kept.is_paused:
        world.store.pause(kept.schedule, "why", "ann")
        kept.is_paused = True
    else:
        world.store.resume(kept.schedule)
        kept.is_paused = False
        kept.first, kept.before = world.first_after_now(kept.schedule), world.dealt_with(name)
    world.note(f"{name} is {'paused' if kept.is_paused else 'resumed'}")
    return True


def run_by_hand(world: SchedulesWorld, pick: Random) -> bool:
    """Fire a schedule outside its slots, perhaps with an answer that is lost."""
    if not world.kept:
        return False
    kept = world.kept[pick.choice(sorted(world.kept))]
    submission = world.store.outside_slots(kept.schedule)
    for _ in range(pick.choice([1, 1, 2])):
        if world.store.run(kept.schedule, submission, "p1") != "fired":
            raise BrokenPromiseError("a run outside the slots was not accepted")
    kept.by_hand += 1
    return True


def look(world: SchedulesWorld, pick: Random) -> bool:
    """Let a worker fire what is due; others act between its trips, and it may die."""
    idle = [one for one in world.watchers if not one.program.is_busy]
    if not idle:
        return False
    watcher = pick.choice(idle)

    def others(pick: Random) -> None:
        pick.choice(_OTHERS)(world, pick)

    try:
        with watcher.program.interrupted(pick, others):
            fired = _look(world, watcher.store, watcher.reaper)
    except ProgramDiedError:
        world.note("a worker has died while it looked at schedules")
        return True
    world.note(f"a worker looks at schedules: {', '.join(fired) or 'nothing is due'}")
    return True


def break_off_look(world: SchedulesWorld, pick: Random) -> bool:
    """Let a worker fire what is due by a script that stops half-way; the next look fires the rest."""
    refusal = Refusal(
        FAULT, pick.randrange(1, 14), lasts=False, is_sent_again=False, before=pick.choice((1, 1, 2))
    )

    def look_once(*_: object) -> bool:
        return bool(_look(world, world.store, world.reaper))

    has_fired = take(world, pick, look_once, refusal)
    if not refusal.met:
        return has_fired
    for name, state in world.states().items():
        kept = world.kept[name]
        if state.next is None:
            continue
        passed = ((_ms(state.next) or 0) - kept.first) // kept.every
        twice = world.dealt_with(name) - kept.before - passed
        if twice < 0:
            raise BrokenPromiseError(f"{name} goes on to {state.next}, and a slot was not dealt with")
        kept.before += twice  # it was counted, and comes again
        kept.counted_twice += twice
    return True


def _look(world: SchedulesWorld, store: ScheduleStore, reaper: Reaper) -> list[str]:
    def cancel(ids: Sequence[str]) -> None:
        for call_id in ids:  # whether it is, a worker that dies does not tell
            world.known(call_id).is_doubtful = True
        reaper.cancel_many(ids, "schedule")

    found = store.fire_due([OWNER, RUN_TIME], cancel).fired
    counts = Counter(f"{one.schedule.name} {one.word}" for one in found)
    return [f"{text} ({count})" for text, count in counts.items()]


def pass_time(world: SchedulesWorld, pick: Random) -> bool:
    """Let time pass."""
    world.now += pick.choice(_TICKS)
    world.show_time()
    return True


# What must be true


def check_schedules(world: SchedulesWorld) -> None:
    """Raise BrokenPromiseError if a slot was fired twice, too early or in spite of a pause, or is lost."""
    check(world)
    states = world.states()
    if states.keys() != world.kept.keys():
        raise BrokenPromiseError(f"the schedules are {sorted(states)}, not {sorted(world.kept)}")
    for name, kept in world.kept.items():
        state, done = states[name], world.dealt_with(name) - kept.before
        if kept.is_paused != (state.paused is not None):
            raise BrokenPromiseError(f"{name} is {'not ' if kept.is_paused else ''}paused")
        if kept.is_paused:
            if state.next is not None:
                raise BrokenPromiseError(f"{name} is paused, and is due at {state.next}")
            continue
        following = kept.schedule.timing.next(kept.first + done * kept.every - 1)
        if _ms(state.next) != following:
            raise BrokenPromiseError(f"{done} slots of {name} are dealt with, and the next is {state.next}")
        if done and kept.first + (done - 1) * kept.every > world.now * 1000:
            raise BrokenPromiseError(f"{name} was fired before its slot")
        if kept.schedule.catch_up == "all" and _given_up(state) > kept.given_up:
            raise BrokenPromiseError(f"{name} has missed a slot")


def heal_schedules(world: SchedulesWorld) -> None:
    """Look until nothing is due; every slot that has passed is dealt with, and every run ends."""
    for _ in range(20):
        if not _look(world, world.store, world.reaper):
            break
    else:
        raise BrokenPromiseError("schedules are due for ever")
    check_schedules(world)
    for name, state in world.states().items():
        kept = world.kept[name]
        if not kept.is_paused and (_ms(state.next) or 0) <= world.now * 1000:
            raise BrokenPromiseError(f"the slot {state.next} of {name} is lost")
        events = _events(world, kept.schedule.full_name)
        if len(events) < state.fired - kept.counted_twice:
            raise BrokenPromiseError(f"{name} has fired {state.fired}, and there are {len(events)} events")
    for call_id in world.due():
        if world.redis.exists(world.ledger.keys.call(call_id)):
            world.known(call_id)  # a fired event that no worker has been seen with
    heal(world)


def _given_up(state: ScheduleState) -> int:
    return state.missed + state.skipped


def _events(world: SchedulesWorld, full_name: str) -> set[str]:
    # a script that stops after it has accepted an event may leave it out of the list of its agent's calls
    prefix = world.ledger.keys.call("")
    found: Any = world.redis.scan_iter(f"{prefix}*")
    records = (world.ledger.record(key.decode().removeprefix(prefix)) for key in found)
    origins = {one.id: one.call.origin or {} for one in records if one is not None}
    return {call_id for call_id, origin in origins.items() if origin.get("schedule") == full_name}


def _ms(text: str | None) -> int | None:
    return None if text is None else epoch_milliseconds(text)


_OTHERS: tuple[Callable[..., bool], ...] = (
    look, look, look, write, pause_or_resume, pass_time, run_by_hand,
    workers.reserve, workers.claim, sweeps.sweep,
)  # fmt: skip

SCHEDULES = Scene(
    "schedules",
    (
        (write, 1),
        (write_older, 0),
        (pause_or_resume, 0),
        (run_by_hand, 0),
        (look, 6),
        (break_off_look, 0),
        (pass_time, 5),
        (producers.submit, 0),
        (producers.cancel, 0),
        (workers.reserve, 3),
        (workers.claim, 3),
        (workers.mark, 3),
        (workers.begin, 3),
        (workers.finish, 3),
        (workers.renew, 1),
        (faults.kill, 0),
        (faults.freeze, 0),
        (faults.thaw, 2),
        (sweeps.put_back, 0),
        (sweeps.sweep, 1),
        (sweeps.settle, 2),
    ),
    SchedulesParts,
    SchedulesWorld,
    check_schedules,
    heal_schedules,
    grave=("freeze", "kill"),
)
