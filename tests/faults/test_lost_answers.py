"""A connection of a worker is cut at each command of its lead: before Redis has it, or before the answer."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from redis import Redis

from broker_config.queues import IN_FLIGHT
from broker_config.scripts import Script
from broker_config.settings import Settings
from goondan_tasks.ledger.scripts import Scripts
from tests.celery_apps import plain_celery
from tests.faults.conftest import LOAD_BUNDLE, Say
from tests.faults.crowd import AGENT, Answer, Crowd, numbered
from tests.faults.finals import final_results
from tests.faults.handler_log import HandlerLog
from tests.faults.idle import wait_until_idle
from tests.faults.proxied import ProxiedStack, proxied_stack
from tests.faults.proxy import Command
from tests.faults.reckoning import UNKNOWN, Reckoning
from tests.faults.work import work_args
from tests.waiting import wait_until
from workers.pool.lead import GROUP, MOST_RESULTS

pytestmark = pytest.mark.faults

LEASE_SECONDS = 2
PATIENCE = 60
CONCURRENCY = 2
#: a connection that was cut may have held so many calls that were marked, or whose results were on their way
MOST_UNKNOWN = CONCURRENCY + GROUP + MOST_RESULTS
#: the connection that takes calls off the queues
LEAD = "goondan-lead"

SCRIPTS = Scripts.read(Settings())
#: tools and the length of their handlers, in turn
SHORT = [("once__sync", 0.0)] * 4 + [("again__sync", 0.0)]
#: two that last have both places, and the calls that were claimed behind them go back
MIXED = [("once__sync", 0.0)] * 8 + [("again__async", 0.03)] * 2


@dataclass(frozen=True, slots=True)
class Moment:
    """A command of a worker, and the work under which it is sent."""

    name: str
    is_it: Callable[[Command], bool]
    #: how many producers wait for one call each: few leave a worker idle between them
    crowd: int = 24
    work: Sequence[tuple[str, float]] = field(default_factory=lambda: SHORT)
    #: whether it is sent only when a connection is made
    is_first: bool = False

    def matches(self, connection: str, command: Command) -> bool:
        """Say whether a command on a connection of that name is it."""
        return connection == LEAD and self.is_it(command)


def runs(script: Script) -> Callable[[Command], bool]:
    """Return what knows the commands that run a script."""
    known = {script.sha.encode(), script.text.encode()}
    return lambda command: command[0] in (b"EVALSHA", b"EVAL") and command[1] in known


def reserves(command: Command) -> bool:
    """Say whether a command reserves messages, and claims calls."""
    return command[0] in (b"EVALSHA", b"EVAL") and command[3] == IN_FLIGHT.encode()


def reserves_behind_a_wait(command: Command) -> bool:
    """Say whether a command is the reservation that a worker sends behind its blocking pop."""
    return reserves(command) and command[3 + int(command[2]) + 2] == b"1"


MOMENTS = [
    Moment("reserve", lambda command: reserves(command) and not reserves_behind_a_wait(command)),
    Moment("start", runs(SCRIPTS.start)),
    Moment("finish", runs(SCRIPTS.finish)),
    Moment("blocking-pop", lambda command: command[0] == b"BRPOP", crowd=2),
    Moment("reserve-behind-it", reserves_behind_a_wait, crowd=2),
    Moment("release", runs(SCRIPTS.release), work=MIXED),
    Moment("script-load", lambda command: command[:2] == [b"SCRIPT", b"LOAD"], is_first=True),
    Moment("client-id", lambda command: command[:2] == [b"CLIENT", b"ID"], is_first=True),
]


@pytest.fixture(scope="module")
def stack() -> Iterator[ProxiedStack]:
    with proxied_stack(LOAD_BUNDLE, {"GOONDAN_LEASE_SECONDS": str(LEASE_SECONDS)}) as stack:
        for _ in range(2):
            stack.start_worker(concurrency=CONCURRENCY)
        yield stack


def cut_at(stack: ProxiedStack, moment: Moment, *, nth: int, is_carried_out: bool) -> None:
    """Cut a worker's connection at a moment, and return when that has happened."""
    done = stack.proxy.seen.cuts + 1
    stack.proxy.cut_at(moment.matches, nth=nth, is_carried_out=is_carried_out)
    with Redis.from_url(stack.redis_url) as redis:

        def is_cut() -> bool:
            if moment.is_first and stack.proxy.seen.command_cut is not None:
                reconnect(redis)
            return stack.proxy.seen.cuts == done

        wait_until(is_cut, PATIENCE, show=lambda: moment.name)


def reconnect(redis: Redis) -> None:
    """Let the connections of the leads be made again."""
    for connection in redis.client_list():
        if connection["name"] == LEAD:
            redis.client_kill_filter(_id=connection["id"])


def superseded(stack: ProxiedStack) -> int:
    """Count the results that Redis had already when they were sent."""
    return sum(stack.log(worker).count("call.superseded") for worker in stack.workers)


@contextmanager
def watched(stack: ProxiedStack, log: HandlerLog, moment: Moment, say: Say) -> Iterator[None]:
    """Let producers work during a ``with`` block, and check that each call was answered once."""
    tools, seconds = zip(*moment.work, strict=True)
    calls = numbered(
        itertools.cycle(tools), lambda number: work_args(log, number, seconds[number % len(seconds)])
    )
    cuts = stack.proxy.seen.cuts
    crowd = Crowd(stack.client, moment.crowd, PATIENCE)
    with final_results(stack.redis_url) as finals:
        with crowd.at_work(calls) as answers:
            wait_until(lambda: crowd.answered > moment.crowd, PATIENCE)
            yield
            enough = crowd.answered + moment.crowd
            wait_until(lambda: crowd.answered > enough, PATIENCE)
        wait_until_all_are_told(finals, answers)
    cuts = stack.proxy.seen.cuts - cuts
    reckoning = Reckoning(answers, log.runs(), finals)
    say([*reckoning.lines(), f"{cuts} connections cut"])
    assert reckoning.run_twice == []
    assert reckoning.not_answered_once == []
    assert reckoning.ok_without_run == []
    assert reckoning.codes.keys() <= {"ok", UNKNOWN}
    assert reckoning.codes[UNKNOWN] <= MOST_UNKNOWN * cuts
    assert [worker.poll() for worker in stack.workers] == [None, None]
    wait_until_idle(stack.redis_url)


def wait_until_all_are_told(finals: Counter[str], answers: Sequence[Answer]) -> None:
    """Return when the notification of each answer was counted: producers may be quicker."""
    wait_until(lambda: all(finals[answer.id] for answer in answers), PATIENCE)


@pytest.mark.parametrize(
    ("moment", "times"),
    [
        pytest.param(MOMENTS[0], 1, id="short"),
        *(pytest.param(moment, 3, id=moment.name, marks=pytest.mark.long) for moment in MOMENTS),
    ],
)
def test_connection_cut_at_command_costs_no_call(
    stack: ProxiedStack, log: HandlerLog, say: Say, moment: Moment, times: int
) -> None:
    with watched(stack, log, moment, say):
        for nth, is_carried_out in itertools.product(range(1, times + 1), (False, True)):
            cut_at(stack, moment, nth=nth, is_carried_out=is_carried_out)


@pytest.mark.long
def test_results_that_are_sent_twice_are_stored_once(stack: ProxiedStack, log: HandlerLog, say: Say) -> None:
    [finish] = [moment for moment in MOMENTS if moment.name == "finish"]
    before = superseded(stack)
    with watched(stack, log, finish, say):
        for _ in range(3):
            cut_at(stack, finish, nth=3, is_carried_out=True)
    assert superseded(stack) > before


@pytest.mark.long
def test_messages_of_plain_producers_survive_lost_reservation(stack: ProxiedStack, log: HandlerLog) -> None:
    [reserve] = [moment for moment in MOMENTS if moment.name == "reserve"]
    cuts = stack.proxy.seen.cuts
    with plain_celery(stack.redis_url, set_as_current=False) as celery:
        for start in range(0, 30, 10):
            stack.proxy.cut_at(reserve.matches, is_carried_out=True)
            calls = [
                {"agentName": AGENT, "toolName": "once__sync", "args": work_args(log, number, 0)}
                for number in range(start, start + 10)
            ]
            sent = [
                celery.send_task("goondan.tool_call", kwargs={"call": call}, queue=f"agent.{AGENT}")
                for call in calls
            ]
            assert [one.get(timeout=PATIENCE)["status"] for one in sent] == ["ok"] * 10
    assert stack.proxy.seen.cuts == cuts + 3
    assert {number: len(runs) for number, runs in log.runs().items()} == dict.fromkeys(range(30), 1)
    wait_until_idle(stack.redis_url)
