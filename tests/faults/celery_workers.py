"""Workers started as ``celery worker``, with a pool and a broker of one's choice."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

from goondan_tasks.bundle import load_bundle
from goondan_tasks.client import Client
from goondan_tasks.testing import LocalStack
from tests.faults import stock_transport
from tests.faults.fleet import Worker

_numbers = itertools.count(1)


class OtherBrokerStack(LocalStack):
    """A stack whose queues are not in the ledger's Redis."""

    broker_url: str

    def through(self, broker_url: str) -> Self:
        """Use this broker; to be called before ``with``."""
        self.broker_url = broker_url
        return self

    def _connect(self) -> Client:
        settings = super()._connect().settings.model_copy(update={"broker_url": self.broker_url})
        return Client(settings, load_bundle(self.bundle))

    def _worker_environment(self) -> dict[str, str]:
        return {**super()._worker_environment(), "GOONDAN_BROKER_URL": self.broker_url}


def celery_workers(stack: LocalStack, directory: Path, *options: str) -> Callable[[], Worker]:
    """Return what starts one ``celery worker`` of the stack; it writes its log into ``directory``."""

    def launch() -> Worker:
        name = f"celery-{next(_numbers)}"
        command = [
            sys.executable,
            "-m",
            stock_transport.__name__,
            "--app",
            "goondan_tasks",
            "--quiet",
            "worker",
        ]
        usual = ["-n", f"{name}@%h", "-Q", "agent.tester", "--without-gossip", "--without-mingle"]
        with (directory / f"{name}.log").open("wb") as output:
            worker = stack._group.start(
                [*command, *usual, *options], env=stack._worker_environment(), output=output
            )
        stack._workers.append(worker)  # which the stack ends
        return worker

    return launch
