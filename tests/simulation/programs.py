"""The product's own programs, over connections whose trips may be interrupted."""

import math
from collections.abc import Callable
from typing import Any, cast

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from broker_config.scripts import ScriptCall
from broker_config.settings import Settings
from goondan_tasks.client.client import Client
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from tests.simulation.scripts import CLOCK
from tests.simulation.trips import OTHERS_ACT, Program
from workers.delivery.delivery import Delivery
from workers.delivery.result_writer import ResultWriter


def show_virtual_time(redis: Redis) -> None:
    """Let a client's ``time`` answer with the virtual clock, as the scripts' ``TIME`` does."""

    def time() -> tuple[int, int]:
        seconds, micros = cast("list[bytes]", redis.hmget(CLOCK, "s", "us"))
        return int(seconds), int(micros)

    redis.time = time  # type: ignore[assignment]


class InlineWriter:
    """Writes as a worker's PipelinedWriter does, but waits for each answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def send(
        self,
        script_call: ScriptCall[Any],
        receiver: Callable[[Any], object],
        *,
        refused: Callable[[ResponseError], object] = lambda _: None,
        is_urgent: bool = True,
        is_full: bool = False,
    ) -> None:
        """Run a script call, and hand over its answer, or the error with which Redis refuses it."""
        try:
            answer = script_call.run(self._redis)
        except ResponseError as error:
            refused(error)
        else:
            receiver(answer)

    put_off = send

    def ask(self, script_call: ScriptCall[Any]) -> Any:
        return script_call.run(self._redis)

    def flush(self) -> None:
        """Do nothing: everything is sent."""


class Unseen:
    """Takes what a part tells others of its work: logs, counts, monitors."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_args, **_fields: None

    def __call__(self, *_args: Any, **_fields: Any) -> None:
        """Take it."""


def client_of(redis: Redis, settings: Settings) -> Client:
    """Make a client with this connection; it has no thread that receives results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("goondan_tasks.client.connection.connect", lambda *_, **__: redis)
        client = Client(settings)
    client._calls.listener.start = lambda: None  # type: ignore[method-assign]
    return client


def delivery_of(redis: Redis, settings: Settings) -> Delivery:
    """Make the part of a worker that answers messages which hold no call that can be run."""
    ledger, writer, unseen = Ledger(redis, settings), InlineWriter(redis), Unseen()
    reaper = Reaper(ledger, settings.help_url)
    others: Any = dict.fromkeys(("limiter", "leases", "cancels", "spans"), unseen)
    more: Any = dict.fromkeys(("retries", "log", "counts", "monitors"), unseen)
    result_writer = ResultWriter(ledger, cast(Any, writer), reaper, **others, **more)
    rest: Any = dict.fromkeys(("revisions", "watchdog"), unseen)
    return Delivery(ledger, cast(Any, writer), reaper, result_writer=result_writer, **others, **rest)


def without_served_agents(reaper: Reaper) -> Reaper:
    """Let a reaper know without asking, for as long as it likes by its own clock, that no worker is there."""
    reaper._agents, reaper._served_until = (), math.inf
    return reaper


class Operator:
    """A program of an operator, or a worker that refuses messages."""

    def __init__(self, redis: Redis, settings: Settings, others_act: float = OTHERS_ACT) -> None:
        self.program = Program(redis, others_act)
        show_virtual_time(self.program.redis)
        self.client = client_of(self.program.redis, settings)
        self.delivery = delivery_of(self.program.redis, settings)
        for reaper in (self.client._reaper, self.delivery.reaper):
            without_served_agents(reaper)
