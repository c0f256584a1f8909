"""Redis goes away under every method of a client and the command line: nothing ends, is lost or doubled."""

import asyncio
import itertools
import json
import logging
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
from redis import Redis

from broker_config.connections import SOCKET_TIMEOUT_SECONDS
from goondan_tasks.bundle import load_bundle
from goondan_tasks.client import AsyncClient, Client
from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.testing import LocalStack
from tests.faults import redis_faults
from tests.faults.conftest import LOAD_BUNDLE, Say
from tests.faults.crowd import AGENT
from tests.faults.handler_log import HandlerLog
from tests.faults.redis_faults import Fault
from tests.faults.sizes import AWAY_LONG, AWAY_SHORT
from tests.faults.work import submit_work, work_args
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

#: how long is waited for a result, or for a producer, after the outage too
PATIENCE = 60.0
FAULTS: list[Fault] = [redis_faults.restart, redis_faults.freeze, redis_faults.replace, redis_faults.demote]
#: what a receiver is told to end with
LAST = "last"
CANCELLED = "E_TOOL_CANCELLED"
#: what is logged of an outage, and of a time when Redis refuses commands
AWAY = ("Redis cannot be reached", "Redis is back")
REFUSED = ("Redis accepts no commands", "Redis accepts commands again")


def outages(short: Sequence[Fault]) -> list["pytest.ParameterSet"]:
    """Return each fault for a moment, some of them in the short run, and those of one server for long.

    What a replica brings back does not depend on how long clients had to wait for it.
    """
    long = [pytest.mark.long, pytest.mark.timeout(300)]
    return [
        *(pytest.param(fault, AWAY_SHORT, id=f"{fault.__name__}-short") for fault in short),
        *(
            pytest.param(fault, AWAY_SHORT, id=fault.__name__, marks=long)
            for fault in FAULTS
            if fault not in short
        ),
        *(pytest.param(fault, AWAY_LONG, id=f"{fault.__name__}-long", marks=long) for fault in FAULTS[:2]),
    ]


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalStack]:
    # no worker dies here; a claim whose answer was lost with its connection moves on after a lease
    with LocalStack(LOAD_BUNDLE, environment={"GOONDAN_LEASE_SECONDS": "10"}) as stack:
        yield stack


@contextmanager
def new_client(stack: LocalStack, connect_timeout: float) -> Iterator[Client]:
    settings = stack.client.settings.model_copy(update={"connect_timeout_seconds": connect_timeout})
    with Client(settings, load_bundle(LOAD_BUNDLE)) as client:
        yield client


@dataclass
class Work:
    """Producers that use a client's methods, each again and again, and what they have seen."""

    client: Client
    log: HandlerLog
    numbers: Iterator[int] = field(default_factory=itertools.count)
    #: the numbers of the calls that a handler has run, as their results say
    answered: list[int] = field(default_factory=list)
    #: how often each event was received
    received: Counter[Any] = field(default_factory=Counter)
    sent: list[int] = field(default_factory=list)
    #: how often each method has come to its end
    rounds: Counter[str] = field(default_factory=Counter)

    def args(self, seconds: float = 0.05) -> dict[str, Any]:
        return work_args(self.log, next(self.numbers), seconds)

    def took(self, result: Any, number: int) -> None:
        assert result.status == "ok", result
        self.answered.append(number)

    def call(self) -> None:
        args = self.args()
        self.took(self.client.call(AGENT, "once__sync", args, timeout=PATIENCE), args["number"])

    def submit(self) -> None:
        args = self.args(0.5)
        pending = self.client.submit(AGENT, "once__async", args)
        self.took(pending.result(PATIENCE), args["number"])

    def submit_many(self) -> None:
        many = [self.args() for _ in range(5)]
        calls = [{"agentName": AGENT, "toolName": "once__sync", "args": args} for args in many]
        for args, pending in zip(many, self.client.submit_many(calls), strict=True):
            self.took(pending.result(PATIENCE), args["number"])

    def cancel(self) -> None:
        pending = self.client.submit(AGENT, "once__async", self.args(PATIENCE))
        self.client.cancel(pending.id)
        result = pending.result(PATIENCE)
        assert result.error is not None
        assert result.error.code == CANCELLED

    def step(self) -> None:
        turn = self.client.turn(AGENT)
        step = turn.step(timeout=PATIENCE)
        args = self.args()
        [result] = step.run([{"id": "a", "name": "once__sync", "args": args}], timeout=PATIENCE)
        self.took(result, args["number"])
        assert [entry.call_ids for entry in turn.record()] == [(), (result.meta.id,)]

    def request(self) -> None:
        number = next(self.numbers)
        assert self.client.request(AGENT, number, instance_key="asked", timeout=PATIENCE).response == number
        assert self.received[number] == 1

    def send(self) -> None:
        number = next(self.numbers)
        assert self.client.send(AGENT, number, instance_key="told").accepted
        self.sent.append(number)

    def receive(self) -> None:
        """Handle the events of one instance until the end."""
        while (received := self.client.receive(AGENT, "told")) is not None and received.input != LAST:
            self.received[received.input] += 1
            self.client.reply(received, received.input)
        if received is not None:
            self.client.reply(received)

    def look(self) -> None:
        pending = self.client.submit(AGENT, "again__sync", self.args(0))
        assert self.client.pending(pending.id).status() != "dead"
        assert self.client.record(pending.id).call.tool_name == "again__sync"
        assert AGENT in self.client.agents()
        assert self.client.catalog(AGENT)
        assert self.client.queues()
        assert self.client.calls(AGENT)
        assert self.client.trace(pending.id).correlation_id
        assert self.client.dead_letters() == self.client.approvals() == []
        assert len(self.client.workers()) <= 1  # it announces itself again after a long outage
        assert len(self.client.agent_statuses()) == 1
        assert isinstance(self.client.instances(), list)
        pending.result(PATIENCE)

    async def async_call(self, client: AsyncClient) -> None:
        args = self.args()
        self.took(await client.call(AGENT, "once__async", args, timeout=PATIENCE), args["number"])

    async def async_wait(self, client: AsyncClient) -> None:
        args = self.args(0.5)
        self.took(await (await client.submit(AGENT, "once__async", args)).wait(PATIENCE), args["number"])

    async def async_step(self, client: AsyncClient) -> None:
        step = await client.turn(AGENT).step(timeout=PATIENCE)
        args = self.args()
        [result] = await step.run([{"id": "a", "name": "once__sync", "args": args}], timeout=PATIENCE)
        self.took(result, args["number"])

    async def async_request(self, client: AsyncClient) -> None:
        number = next(self.numbers)
        answer = await client.request(AGENT, number, instance_key="asked", timeout=PATIENCE)
        assert answer.response == number

    async def async_receive(self, client: AsyncClient) -> None:
        """Answer the requests until the end."""
        while (received := await client.receive(AGENT, "asked")) is not None and received.input != LAST:
            self.received[received.input] += 1
            await client.reply(received, received.input)
        if received is not None:
            await client.reply(received)

    @property
    def async_methods(self) -> list[Callable[[AsyncClient], Coroutine[Any, Any, None]]]:
        """What is done again and again with the asyncio client."""
        return [self.async_call, self.async_wait, self.async_step, self.async_request]

    async def run_async(self, is_over: threading.Event) -> None:
        """Use each method of the asyncio client until the end."""
        client = AsyncClient(self.client)

        async def again(method: Callable[[AsyncClient], Coroutine[Any, Any, None]]) -> None:
            while not is_over.is_set():
                await method(client)
                self.rounds[method.__name__] += 1

        await asyncio.gather(self.async_receive(client), *map(again, self.async_methods))

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Use each method again and again beside a ``with`` block."""
        is_over = threading.Event()

        def again(method: Callable[[], None]) -> None:
            while not is_over.wait(0.01):
                method()
                self.rounds[method.__name__] += 1

        methods = [
            self.call,
            self.submit,
            self.submit_many,
            self.cancel,
            self.step,
            self.request,
            self.send,
            self.look,
        ]
        with ThreadPoolExecutor(len(methods) + 2) as threads:
            askers = [threads.submit(again, method) for method in methods]
            receivers: list[Future[None]] = [
                threads.submit(self.receive),
                threads.submit(asyncio.run, self.run_async(is_over)),
            ]

            def wait_for_more(rounds: int) -> None:
                before = Counter(self.rounds)
                names = [method.__name__ for method in (*methods, *self.async_methods)]
                wait_until(
                    lambda: (
                        any(one.done() for one in (*askers, *receivers))
                        or all(self.rounds[name] >= before[name] + rounds for name in names)
                    ),
                    show=lambda: self.rounds - before,
                )

            try:
                wait_for_more(1)
                yield
                wait_for_more(2)
            finally:
                is_over.set()
                endings = [asker.exception(2 * PATIENCE) for asker in askers]
                for instance in ("told", "asked"):
                    self.client.send(AGENT, LAST, instance_key=instance)
                endings += [receiver.exception(2 * PATIENCE) for receiver in receivers]
        assert endings == [None] * len(endings)


@pytest.mark.parametrize(("fault", "seconds"), outages(FAULTS))
def test_everything_that_client_does_goes_on_through_outage(
    shared: LocalStack,
    log: HandlerLog,
    say: Say,
    caplog: pytest.LogCaptureFixture,
    fault: Fault,
    seconds: float,
) -> None:
    connect_timeout = 10 if seconds < 10 else seconds + 30
    with new_client(shared, connect_timeout) as client, caplog.at_level(logging.WARNING):
        work = Work(client, log)
        long = submit_work(client, log, number=-1, seconds=seconds + 3)
        with work.going_on():
            fault(shared.redis, seconds)
        assert long.result(PATIENCE).status == "ok"
    runs = {number: len(found) for number, found in log.runs().items()}
    say([", ".join(f"{count} {name}" for name, count in sorted(work.rounds.items()))])
    assert {number: runs.get(number) for number in work.answered} == dict.fromkeys(work.answered, 1)
    assert {number: count for number, count in runs.items() if count != 1} == {}
    assert {number: work.received[number] for number in work.sent} == dict.fromkeys(work.sent, 1)
    assert {event: count for event, count in work.received.items() if count != 1} == {}
    lines = [line for line in caplog.messages if line.startswith("Redis ")]
    told = REFUSED if fault is redis_faults.demote else AWAY
    noticed = [re.split(r",| after|:", line)[0] for line in lines]
    assert noticed == [*told] * is_noticed(fault, seconds)


def is_noticed(fault: Fault, seconds: float) -> bool:
    """Say whether commands fail during an outage; a frozen server may thaw before they do."""
    return fault is not redis_faults.freeze or seconds > SOCKET_TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A running command of the command line."""

    process: "subprocess.Popen[bytes]"
    output: Path

    @classmethod
    def start(cls, stack: LocalStack, directory: Path, *words: str) -> Self:
        output = Path(tempfile.mkstemp(dir=directory)[1])
        url = f"{stack.redis_url}?client_name={words[0]}"
        environment = stack.client.settings.environment(redis_url=url, bundle=LOAD_BUNDLE)
        with output.open("wb") as file:
            command = [sys.executable, "-m", "goondan_tasks", *words]
            return cls(subprocess.Popen(command, env=environment, stdout=file, stderr=file), output)

    @property
    def said(self) -> str:
        """What it has written so far."""
        return self.output.read_text("utf-8")


def is_connected(stack: LocalStack, command: str) -> bool:
    """Say whether a command of that name is connected."""
    with Redis.from_url(stack.redis_url) as redis:
        return command in {connection["name"] for connection in redis.client_list()}


@pytest.mark.parametrize(("fault", "seconds"), outages(FAULTS[:1]))
def test_command_line_goes_on_through_outage(
    shared: LocalStack, log: HandlerLog, tmp_path: Path, fault: Fault, seconds: float
) -> None:
    limit = f"--timeout={seconds + PATIENCE:g}"

    def start(*words: str) -> CommandLine:
        return CommandLine.start(shared, tmp_path, *words, limit)

    gate = tmp_path / "gate"
    args = [{**work_args(log, number, 0), "gate": str(gate)} for number in (1, 2, 4)]
    slow = shared.client.submit(AGENT, "once__held", args[0])
    held = start("call", AGENT, "once__held", json.dumps(args[1]))
    waiting = [held, start("request", AGENT, "3", "--instance=cli")]
    asked = shared.client.receive(AGENT, "cli", PATIENCE)
    assert asked is not None
    wait_until(lambda: log.runs_of(1) and log.runs_of(2))
    waiting.append(start("result", slow.id))
    wait_until(lambda: is_connected(shared, "result"))
    with ThreadPoolExecutor(1) as threads:
        outage = threads.submit(fault, shared.redis, seconds)
        waiting.append(start("call", AGENT, "once__sync", json.dumps(args[2])))
        outage.result()
    gate.touch()
    shared.client.reply(asked, asked.input)
    codes = [one.process.wait(PATIENCE) for one in waiting]
    assert codes == [0] * 4, "\n".join(one.said for one in waiting)
    told = f"{(REFUSED if fault is redis_faults.demote else AWAY)[0]}, trying for "
    noticed = [one.said.count(told) for one in waiting[:3]]
    assert noticed == [is_noticed(fault, seconds)] * 3, [one.said for one in waiting]
    assert {number: len(runs) for number, runs in log.runs().items()} == {1: 1, 2: 1, 4: 1}


def test_ctrl_c_ends_command_during_outage(stack: LocalStack, tmp_path: Path) -> None:
    pending = stack.client.submit(AGENT, "once__sync", {})
    waiting = CommandLine.start(stack, tmp_path, "result", pending.id, "--timeout=600")
    wait_until(lambda: "no worker serves" in waiting.said)
    stack.redis.process.kill()
    wait_until(lambda: f"{AWAY[0]}, trying for " in waiting.said)
    waiting.process.send_signal(signal.SIGINT)
    assert waiting.process.wait(PATIENCE) == 130
    assert f"goondan result {pending.id}" in waiting.said


def test_timeout_error_says_how_long_client_tried(stack: LocalStack) -> None:
    with new_client(stack, 1.0) as client:
        pending = client.submit(AGENT, "once__sync", {})
        stack.redis.process.kill()
        stack.redis.process.wait(PATIENCE)
        for work in (
            lambda: client.submit(AGENT, "once__sync", {}),
            lambda: pending.result(3),
            lambda: client.call(AGENT, "once__sync", {}, timeout=1),
            lambda: client.receive(AGENT, timeout=1),
            lambda: asyncio.run(AsyncClient(client).receive(AGENT, timeout=1)),
        ):
            with pytest.raises(BrokerUnreachableError, match=r"cannot be reached: .*; tried for \d"):
                work()


def test_cancelled_task_leaves_no_thread_retrying(stack: LocalStack) -> None:
    stack.redis.process.kill()
    stack.redis.process.wait(PATIENCE)

    async def give_up(work: Coroutine[Any, Any, object]) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work, 0.5)

    client = AsyncClient(stack.client)
    for work in (
        client.receive(AGENT),
        client.request(AGENT, timeout=600),
        client.call(AGENT, "once__sync", timeout=600),
    ):
        ended = threading.Thread(target=asyncio.run, args=[give_up(work)], daemon=True)
        ended.start()
        ended.join(PATIENCE)  # it ends when the threads of its loop have ended
        assert not ended.is_alive()
    wait_until(lambda: not [one for one in threading.enumerate() if one.name.startswith("goondan-receive")])
