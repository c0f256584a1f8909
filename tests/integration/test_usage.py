"""Usage and hand-offs as workers count them, beside what the records of all calls say, over kill -9."""

import html
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen

import httpx2
import pytest

from goondan_tasks.client import Client
from goondan_tasks.contract.errors import ToolOutcomeUnknownError
from goondan_tasks.contract.events import sender_of
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.contract.names import DELEGATE_TOOL, EVENT_TOOLS, MODEL_TOOLS
from goondan_tasks.fleet.usage import TOKEN_KINDS, Usage, user_of
from goondan_tasks.ledger.record import CallRecord
from tests.shop import PATIENCE, QUESTION, Shop, shop
from tests.waiting import wait_until

Counts = dict[tuple[str, str, str], dict[str, int]]
ANN = {"subjects": {"user": "ann"}}


@contextmanager
def asked_shop() -> Iterator[Shop]:
    with shop() as at:
        at.client.request("support", QUESTION, instance_key="customer-1041", timeout=PATIENCE, auth=ANN)
        yield at


@pytest.fixture(scope="module")
def swarm() -> Iterator[Shop]:
    """A swarm that tests only look at."""
    with asked_shop() as at:
        yield at


@pytest.fixture
def own_swarm() -> Iterator[Shop]:
    """A swarm whose workers a test may end."""
    with asked_shop() as at:
        yield at


def by_name(rows: list[Usage]) -> Counts:
    return {
        (row.agent or "", row.model or "", row.user or ""): {
            name: getattr(row, name) for name in ("calls", "requests", *TOKEN_KINDS)
        }
        for row in rows
    }


def ended(client: Client) -> list[CallRecord]:
    return [one for one in client.calls(None, 1_000) if one.status == "done" and one.result is not None]


def ran(result: ToolCallResult) -> bool:
    """Return whether a worker has stored the result: that of a call in progress that was lost is not used."""
    return result.error is None or result.error.code != ToolOutcomeUnknownError.code


def from_outside(client: Client) -> Counts:
    """Count what the records of all calls say."""
    found: Counts = {}
    for record in ended(client):
        call, result = record.call, client.pending(record.id).result(PATIENCE)
        if call.tool_name in EVENT_TOOLS or not ran(result):
            continue
        meta = result.meta
        model = call.tool_name.removeprefix(MODEL_TOOLS) if call.tool_name.startswith(MODEL_TOOLS) else ""
        names = call.agent_name, model, user_of(call.auth)
        row = found.setdefault(names, dict.fromkeys(("calls", "requests", *TOKEN_KINDS), 0))
        row["requests" if model else "calls"] += 1
        for kind in TOKEN_KINDS if model else ():
            row[kind] += (meta.usage or {}).get(kind, 0)
    return found


def counted(client: Client) -> Counts:
    return by_name(client.usage(2, by="agent,model,user"))


def wait_until_all_is_counted(client: Client) -> None:
    wait_until(
        lambda: counted(client) == from_outside(client),
        PATIENCE,
        show=lambda: f"counted {counted(client)}, from outside {from_outside(client)}",
    )


def worker_of(at: Shop, agent: str) -> Popen[bytes]:
    pids = {one.pid for one in at.client.workers() if agent in one.agents}
    return next(one for one in at.stack.workers if one.pid in pids and one.poll() is None)


def total(counts: Counts) -> Counter[str]:
    return sum((Counter(row) for row in counts.values()), Counter[str]())


def test_usage_is_counted_by_agent_model_and_user(swarm: Shop) -> None:
    wait_until_all_is_counted(swarm.client)
    found = counted(swarm.client)
    assert {names[1:] for names in found} == {("", "ann"), ("scripted", "ann")}
    assert {names[0] for names in found} == {"support", "billing"}
    assert total(found)["requests"] >= 5
    assert total(found)["input"] > total(found)["output"] > 0
    today = swarm.client.usage(1)
    assert sum(row.requests for row in today) <= total(found)["requests"]
    minutes = Counter(dict[str, int]())
    for worker in swarm.client.call_counts().workers:
        minutes.update(worker.minutes)
    assert minutes.total() == total(found)["input"] + total(found)["output"]


def test_handoffs_are_counted_by_sender_and_receiver(swarm: Shop) -> None:
    expected: Counter[tuple[str, str]] = Counter()
    for record in ended(swarm.client):
        if sender := sender_of(record.call.to_wire()) if record.call.tool_name in EVENT_TOOLS else "":
            expected[sender, record.call.agent_name] += 1
    assert expected == {("client", "support"): 1, ("support", "billing"): 1}

    def found() -> dict[tuple[str, str], int]:
        return {(one.from_agent, one.to): one.count - one.errors for one in swarm.client.handoffs(1).edges}

    wait_until(lambda: found() == expected, PATIENCE, show=found)


def test_usage_pages_show_same_counts_and_link_calls(swarm: Shop) -> None:
    client = swarm.client
    wait_until_all_is_counted(client)
    with httpx2.Client(base_url=swarm.url) as browser:
        page = browser.get("/console/usage?by=model&days=2").text
        data = browser.get("/console/usage?by=model&days=2&format=json").json()
        whole = total(counted(client))
        assert {name: data["total"][name] for name in whole} == whole
        [models] = [one for one in data["groups"] if one["name"] == "scripted"]
        assert f'<a href="{html.escape(models["requestsAt"])}">{models["requests"]}</a>' in page
        listed = browser.get(f"{models['requestsAt']}&format=json").json()["rows"]
        assert len(listed) == models["requests"] == whole["requests"]

        overview = browser.get("/console").text
        data = browser.get("/console?format=json").json()
        edge = next(one for one in data["graph"]["edges"] if one["from"] == "support")
        assert (edge["to"], edge["count"], edge["errors"]) == ("billing", 1, 0)
        assert edge["path"] in overview
        behind = browser.get(f"{edge['address']}&format=json").json()["rows"]
        assert [row["tool"] for row in behind] == [DELEGATE_TOOL]


def test_killed_worker_counts_once_losing_at_most_one_heartbeat(own_swarm: Shop) -> None:
    client = own_swarm.client
    wait_until_all_is_counted(client)
    worker_of(own_swarm, "support").kill()  # what it had counted is written
    assert counted(client) == from_outside(client)
    own_swarm.stack.start_worker(["support"])
    client.call("support", "orders__repeat", {"text": "a"}, timeout=PATIENCE)
    wait_until_all_is_counted(client)
    written = total(counted(client))["calls"]
    calls = [client.submit("support", "orders__repeat", {"text": "a", "times": n}) for n in range(60)]
    for call in calls[:30]:
        call.result(PATIENCE)
    worker_of(own_swarm, "support").kill()  # what it has counted since its last heartbeat is lost
    own_swarm.stack.start_worker(["support"])
    for call in calls:
        call.result(PATIENCE)
    client.call("support", "orders__repeat", {"text": "the last"}, timeout=PATIENCE)

    def found() -> int:
        return total(counted(client))["calls"]

    wait_until(lambda: found() > written, PATIENCE)
    assert found() <= total(from_outside(client))["calls"]


def test_draining_worker_counts_calls_ending_meanwhile(own_swarm: Shop) -> None:
    client, bob = own_swarm.client, {"subjects": {"user": "bob"}}
    running = client.submit("support", "orders__export", {"format": "csv"}, auth=bob)
    # a call that is claimed only would go back to its queue, and be cancelled there
    wait_until(lambda: client.record(running.id).has_started, PATIENCE)
    process = worker_of(own_swarm, "support")
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: "worker.draining" in own_swarm.stack.log(process), PATIENCE)
    running.cancel()
    result = running.result(PATIENCE)
    process.wait(PATIENCE)
    assert result.meta.attempt == 1
    assert counted(client)["support", "", "bob"]["calls"] == 1
