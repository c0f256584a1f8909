"""A broker that is not the ledger's Redis: another database carries the queues."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from broker_config.embedded import EmbeddedRedis
from broker_config.process_group import ProcessGroup, end_processes
from broker_config.settings import Settings
from goondan_tasks.bundle import load_bundle
from goondan_tasks.client import Client
from goondan_tasks.errors import BrokerUnreachableError
from goondan_tasks.names import call_identity
from tests.integration.diary import BUNDLE, Diary
from tests.integration.goondan_process import environment

WORKSHOP = Path(__file__).parent.parent / "bundles" / "workshop"
HARBOUR = WORKSHOP.parent / "harbour"


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with EmbeddedRedis() as server:
        yield server.url


@pytest.fixture(scope="module")
def broker_url(redis_url: str) -> str:
    return f"{redis_url.rsplit('/', 1)[0]}/1"


@pytest.fixture(scope="module")
def _worker(redis_url: str, broker_url: str) -> Iterator[None]:
    """A worker process of the workshop's agents."""
    with worker_of(WORKSHOP, redis_url, broker_url):
        yield


@contextmanager
def worker_of(bundle: Path, redis_url: str, broker_url: str) -> Iterator[None]:
    with ExitStack() as resources:
        root = resources.enter_context(tempfile.TemporaryDirectory())
        group = resources.enter_context(ProcessGroup())
        env = environment(redis_url=redis_url, broker_url=broker_url, bundle=bundle, state_root=root)
        process = group.start([sys.executable, "-P", "-m", "goondan_tasks", "worker"], env=env)
        resources.callback(lambda: end_processes([process], 5))
        yield


@pytest.mark.usefixtures("_worker")
def test_calls_run_through_another_broker(redis_url: str, broker_url: str) -> None:
    settings = Settings(redis_url=redis_url, broker_url=broker_url)
    with Client(settings, load_bundle(WORKSHOP)) as client:
        calls = client.submit_many(
            [{"agentName": "smith", "toolName": "echo__args", "args": {"n": number}} for number in range(5)]
        )
        assert [call.result(60).output for call in calls] == [{"n": number} for number in range(5)]
        assert client._redis.llen("agent.smith") == 0


def test_calls_are_approved_and_completed_through_another_broker(redis_url: str, broker_url: str) -> None:
    settings = Settings(redis_url=redis_url, broker_url=broker_url)
    with worker_of(HARBOUR, redis_url, broker_url), Client(settings, load_bundle(HARBOUR)) as client:
        held = client.submit("builder", "guarded__wipe", {"disk": "sda"}, instance_key="held")
        assert held.result(60).status == "pending"
        client.approve(held.id)
        assert held.result(60, wait_pending=True).output == {"wiped": "sda"}
        order = {"tool": "jobs__begin", "args": {"handle": "job-1"}}
        begun = client.request("clerk", order, timeout=60).response["meta"]["id"]
        client.resolve(begun, "done")
        told = call_identity("clerk", "default", f"turn-completed-{begun}", f"completed-{begun}")
        assert client.pending(told).result(60).status == "ok"


@pytest.mark.usefixtures("_worker")
def test_a_call_that_could_not_be_sent_is_sent_when_it_is_submitted_again(
    redis_url: str, broker_url: str
) -> None:
    call = {"agentName": "smith", "toolName": "echo__args", "turnId": "turn-1", "toolCallId": "call_1"}
    away = Settings(redis_url=redis_url, broker_url="redis://:secret@127.0.0.1:1/1")
    with Client(away, load_bundle(WORKSHOP)) as client:
        with pytest.raises(BrokerUnreachableError, match=r":\*\*\*@127\.0\.0\.1:1"):
            client.submit_many([call])
        [record] = [record for record in client.calls() if record.call.turn_id == "turn-1"]
    assert record.status == "queued"

    with Client(Settings(redis_url=redis_url, broker_url=broker_url), load_bundle(WORKSHOP)) as client:
        [again] = client.submit_many([call])
        assert again.id == record.id
        assert again.result(60).status == "ok"


def test_calls_that_waited_for_a_limit_come_back_through_another_broker(
    redis_url: str, broker_url: str, tmp_path: Path
) -> None:
    diary = Diary(tmp_path)
    settings = Settings(redis_url=redis_url, broker_url=broker_url)
    wire = [diary.call("desk__solo", f"n{number}") for number in range(10)]
    wire += [diary.call("once__work", "same", idempotencyKey="k")] * 3
    with worker_of(BUNDLE, redis_url, broker_url), Client(settings, load_bundle(BUNDLE)) as client:
        results = [call.result(60) for call in client.submit_many(wire)]
    assert {result.status for result in results} == {"ok"}
    assert diary.started().count("same") == 1
    assert len(diary.started()) == 11
