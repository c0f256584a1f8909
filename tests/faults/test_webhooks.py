"""Webhooks that are sent several times, to replicas of the server that are killed."""

import hashlib
import hmac
import json
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from goondan_tasks.machine.process import listening
from goondan_tasks.testing import LocalStack
from tests.faults.beside import beside
from tests.faults.conftest import ENVIRONMENT, Say
from tests.integration.goondan_process import PROGRAM, environment, goondan
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(1_200)]

WEBHOOKS_BUNDLE = Path(__file__).parent.parent / "bundles" / "webhooks"
SECRET = "the-shop-signs-with-this"
PATIENCE = 120
SENDERS, CUSTOMERS = 12, 60


@pytest.fixture
def sender() -> Iterator[httpx2.Client]:
    """One for all threads: a new one reads the system's certificates, longer than a request takes."""
    with httpx2.Client(timeout=20) as sender:
        yield sender


def free_port() -> int:
    with listening("127.0.0.1", 0) as free:
        return int(free.getsockname()[1])


class Replica:
    """A process of ``goondan serve`` that is started again when it was killed."""

    def __init__(self, env: dict[str, str], log: Path, sender: httpx2.Client) -> None:
        self._env, self._log, self._sender, self._port = env, log, sender, free_port()
        self.kills = 0
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [*PROGRAM, "serve", "--door", "connections", "--port", str(self._port)]
        with self._log.open("ab") as log:
            return subprocess.Popen(command, env=self._env, stdout=log, stderr=log)

    def send(self, body: bytes, headers: dict[str, str]) -> int:
        """Send a request once; 0 if there is no answer."""
        url = f"http://127.0.0.1:{self._port}/connections/shop/orders"
        try:
            return self._sender.post(url, content=body, headers=headers).status_code
        except httpx2.TransportError:
            return 0

    def replace(self) -> None:
        """Kill it, and start another at its address."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)
        self.kills += 1
        self.process = self._start()


def signed(order: dict[str, str], *, secret: str = SECRET, age: int = 0) -> tuple[bytes, dict[str, str]]:
    body, at = json.dumps(order).encode(), int(time.time()) - age
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return body, {"stripe-signature": f"t={at},v1={digest}"}


def kill_by_turns(replicas: list[Replica], seconds: float) -> Callable[[threading.Event], None]:
    """Kill one replica after the other, one every so often, as soon as both have answered a request."""

    def kill(is_over: threading.Event) -> None:
        at = 0
        while not is_over.wait(seconds):
            # if no other answers, the sender has nowhere to go
            other = replicas[(at + 1) % 2]
            if other.send(b"", {}) == 401:
                replicas[at % 2].replace()
                at += 1

    return kill


def test_each_webhook_begins_one_turn_despite_failures(
    tmp_path: Path, sender: httpx2.Client, say: Say
) -> None:
    count, chance = 2_000, random.Random(7)
    handled, answers = tmp_path / "handled", Counter[int]()
    handled.touch()
    with LocalStack(WEBHOOKS_BUNDLE, environment={**ENVIRONMENT, "HANDLED_FILE": str(handled)}) as stack:
        env = {**environment(bundle=WEBHOOKS_BUNDLE, redis_url=stack.redis_url), "SHOP_SECRET": SECRET}
        replicas = [Replica(env, tmp_path / f"log-{number}", sender) for number in range(2)]
        try:
            orders = [{"id": f"order-{n}", "customer": str(n % CUSTOMERS)} for n in range(count)]
            copies = [order for order in orders for _ in range(1 + chance.randrange(4))]
            chance.shuffle(copies)
            wait_until(lambda: all(one.send(b"", {}) == 401 for one in replicas), PATIENCE)

            def deliver(order: dict[str, str]) -> None:
                def is_taken() -> bool:
                    status = chance.choice(replicas).send(*signed(order))
                    answers[status] += 1
                    return status == 200

                wait_until(is_taken, PATIENCE, show=lambda: answers)

            with (
                beside(kill_by_turns(replicas, 2.0), "killer", PATIENCE),
                ThreadPoolExecutor(SENDERS) as pool,
            ):
                list(pool.map(deliver, copies))
            wait_until(lambda: len(handled.read_text().splitlines()) >= count, PATIENCE)
            wait_until(lambda: all(one.send(b"", {}) == 401 for one in replicas), PATIENCE)

            before = status_of_shop(env)["refused"]
            forged = [signed(orders[0], secret="guessed"), signed(orders[0], age=400), (b"{}", {})]
            refusals = [one.send(*request) for one in replicas for request in forged * 5]
            wait_until(lambda: status_of_shop(env)["refused"] >= before + len(refusals), PATIENCE)
        finally:
            for replica in replicas:
                replica.process.kill()
                replica.process.wait(PATIENCE)
        turns = Counter(handled.read_text().splitlines())
    kills = sum(one.kills for one in replicas)
    say([f"{len(copies)} copies of {count} webhooks, {kills} kills; answers {dict(answers)}"])
    assert refusals == [401] * 30
    assert kills >= 3  # a quick machine is done after fewer
    assert answers.keys() <= {0, 200, 503, 504}
    assert turns == Counter({order["id"]: 1 for order in orders})


def status_of_shop(env: dict[str, str]) -> dict[str, int]:
    [status] = json.loads(goondan("connectors", "list", "--json", env=env).stdout)
    return dict(status)
