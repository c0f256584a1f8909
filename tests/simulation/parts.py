"""Parts of producers and workers under test, without their threads. They keep nothing of a walk."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from broker_config.queue_reader import QueueReader, Receiver
from broker_config.scripts import ScriptCall
from goondan_tasks.client.pending_call import CallService
from goondan_tasks.client.results import Expected
from goondan_tasks.contract.events import queue_of
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import Claim
from tests.simulation.scripts import show_script
from tests.unit.workers.results import results_of
from workers.concurrency.slots import Slots
from workers.concurrency.threads import DaemonThreads
from workers.job import Job
from workers.pool.lead import Lead


class LeadJob(Job):
    """A claimed call as the lead has it, with the limit of its idempotencyKey as text."""

    key = ""

    @classmethod
    def of(cls, claim: Claim, key: str = "") -> "LeadJob":
        job = cls.of_claim(claim, queue_of(claim.run.call))
        job.key, job.is_bare, job.ended_at = key, True, "2026-01-01T00:00:00.000Z"
        return job


class _ShownReader(QueueReader):
    """A reader whose scripts are seen by those who watch scripts."""

    def post(self, call: ScriptCall[Any], receiver: Receiver) -> None:
        """Add a script call to the next packet."""

        def seen(answer: Any) -> None:
            if not isinstance(answer, RedisError):
                show_script(call, answer)
            receiver(answer)

        super().post(call, seen)


class LeadPart:
    """A lead."""

    def __init__(self, redis: Redis, ledger: Ledger) -> None:
        self.reader = _ShownReader(redis, ())
        self.cancelled: list[Job] = []
        pool: Any = SimpleNamespace(is_draining=False)
        results = results_of(
            ledger, SimpleNamespace(flush=lambda: None), lambda jobs: None, self.cancelled.append
        )
        runtime: Any = SimpleNamespace(
            delivery=SimpleNamespace(ledger=ledger, result_writer=results),
            settings=ledger.settings,
            event_loop=None,
        )
        slots = Slots(lambda: 1, lambda _: None, lambda: None)
        self.lead = Lead(self.reader, runtime, DaemonThreads(lambda: None), slots, pool)

    def mark(self, jobs: Sequence[LeadJob]) -> None:
        """Mark calls in one packet.

        Raises:
            redis.exceptions.RedisError: the connection was lost; the jobs are as before.
        """
        self.lead._post_marks(jobs)
        self.reader.settle()

    def send(self, jobs: Sequence[Job]) -> list[Job]:
        """Send results in one packet; return those that are to be sent again."""
        self.cancelled.clear()
        self.lead._results = list(jobs)
        try:
            self.lead._send_results()
            self.reader.settle()
        except RedisError:
            pass  # the lead has the results again
        again, self.lead._results = self.lead._results, []
        self.lead._outage.must_pause = False
        return again


class ProducerPart:
    """The waits of a producer."""

    def __init__(self, ledger: Ledger, reaper: Reaper) -> None:
        self._calls = CallService(ledger, reaper)

    def look(self, call_ids: list[str]) -> dict[str, Expected]:
        """Look for the results of calls in one trip; return what has come of each."""
        expected = dict(zip(call_ids, self._calls.listener.expect(call_ids), strict=True))
        list(self._calls._look_for(call_ids))
        return expected
