"""Schedules with real workers: each slot once, whatever their clocks say and whoever dies."""

import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from goondan_tasks.client import Client
from goondan_tasks.contract.errors import (
    ScheduleNotFoundError,
    ScheduleOfBundleError,
    ToolInputValidationError,
)
from goondan_tasks.contract.messages import epoch_milliseconds
from goondan_tasks.contract.schedules import slot_text
from goondan_tasks.ledger.schedules import ScheduleState
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, goondan
from tests.waiting import wait_until

BUNDLE = Path(__file__).parents[1] / "bundles" / "clockwork"
EXAMPLE = Path(__file__).parents[2] / "examples" / "morning-report"
PATIENCE = 120
HOUR = 3_600_000
#: 50 schedules with a slot a second each
SCHEDULES, SLOTS = 50, 1_000

#: lets the clock of a Python process be wrong
_SITE = """\
import os, time
real = time.time
time.time = lambda: real() + float(os.environ["SKEW"])
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    with LocalStack(BUNDLE, environment={"GOONDAN_LEASE_SECONDS": "3"}) as running:
        yield running


def state(client: Client, name: str) -> ScheduleState:
    [found] = [one for one in client.schedules.list() if one.schedule.name == name]
    return found


def totals(client: Client) -> tuple[int, int]:
    """Return how many slots were fired, and how many runs are open."""
    states = client.schedules.list()
    return sum(one.fired for one in states), sum(one.open_runs for one in states)


def test_three_workers_with_wrong_clocks_fire_slots_once(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_SITE)
    lines = tmp_path / "lines"
    variables = {"PYTHONPATH": str(tmp_path), "GOONDAN_LEASE_SECONDS": "3"}
    with LocalStack(BUNDLE, workers=0, environment=variables) as stack:
        client = stack.client
        names = [f"s{number}" for number in range(SCHEDULES)]
        for skew in ("-5", "0", "5"):
            stack._environment["SKEW"] = skew
            stack.start_worker()
        for name in names:
            client.schedules.add(
                name, "ringer", {"file": str(lines)}, every="1s", catch_up="all", instance_key=name
            )
        wait_until(lambda: totals(client)[0] >= SLOTS / 2, PATIENCE)
        victim = stack.workers[0]
        victim.send_signal(signal.SIGKILL)
        stack.start_worker()
        wait_until(lambda: totals(client)[0] >= SLOTS, PATIENCE)
        for name in names:
            client.schedules.pause(name)
        wait_until(lambda: all(one.has_ended for one in runs(client)), PATIENCE)
        records = runs(client)
        states = {one.schedule.name: one for one in client.schedules.list()}

    slots = Counter((one.schedule, one.slot) for one in records)
    assert set(slots.values()) == {1}
    assert len(slots) == sum(one.fired for one in states.values()) >= SLOTS
    assert all(one.queued_at >= one.slot for one in records), "a slot was fired before its time"
    for name in names:
        own = sorted(slot for schedule, slot in slots if schedule == name)
        assert {after - before for before, after in pairwise(own)} == {1_000}, f"{name} lacks a slot"
    written = Counter(lines.read_text().splitlines())
    assert set(written.values()) == {1}
    succeeded = {f"{one.schedule} {slot_text(one.slot)}" for one in records if one.outcome == "ok"}
    assert succeeded <= written.keys()
    assert len(succeeded) > len(slots) - 20


class SlotRun:
    """The run of a slot, as its record has it; times are ms."""

    def __init__(self, origin: dict[str, str], queued_at: float, status: str, outcome: str | None) -> None:
        self.schedule = origin["schedule"]
        self.slot = epoch_milliseconds(origin["slot"])
        self.queued_at = queued_at
        self.has_ended = status in ("done", "dead")
        self.outcome = outcome


def runs(client: Client) -> list[SlotRun]:
    found = client.calls("ringer", 10_000)
    return [
        SlotRun(one.call.origin, one.queued_at or 0, one.status, one.outcome)
        for one in found
        if one.call.origin and one.call.origin.get("schedule")
    ]


def wind_back(stack: LocalStack, name: str, slots: int) -> int:
    """Let the next slot of an hourly schedule be one of so many hours ago; return it."""
    client, redis = stack.client, stack.client._redis
    now = redis.time()[0]
    slot = int((now - now % 3_600) * 1000 - (slots - 1) * HOUR)
    keys, one = client._ledger.keys, state(client, name)
    redis.hset(keys.schedule(one.full_name), mapping={"next": slot, "at": slot})
    redis.zadd(keys.schedules(one.schedule.owner), {one.full_name: slot})
    return slot


@pytest.mark.parametrize(("policy", "least", "most"), [("skip", 0, 1), ("once", 1, 1), ("all", 12, 12)])
def test_outage_over_twelve_slots_follows_catch_up_policy(
    stack: LocalStack, policy: str, least: int, most: int
) -> None:
    client = stack.client
    for worker in stack.workers:
        stack.stop_worker(worker)
    client.schedules.add("hourly", "ringer", every="1h", catch_up=policy)
    before = state(client, "hourly")
    wind_back(stack, "hourly", 12)

    stack.start_worker()
    wait_until(lambda: _dealt(client) - before.fired - before.missed == 12, PATIENCE)

    after = state(client, "hourly")
    assert least <= after.fired - before.fired <= most
    assert after.missed - before.missed == 12 - (after.fired - before.fired)
    client.schedules.remove("hourly")


def _dealt(client: Client) -> int:
    one = state(client, "hourly")
    return one.fired + one.missed


def test_changed_bundle_changes_only_its_own_schedules(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(BUNDLE, bundle)
    with LocalStack(bundle) as stack:
        client = stack.client
        client.schedules.add("mine", "ringer", cron="0 0 1 1 *")
        client.schedules.pause("yearly", "why", "ann")
        text = (bundle / "goondan.yaml").read_text()
        changed = text.replace("name: monthly", "name: weekly").replace("30 2 1 * *", "30 2 * * MON")
        (bundle / "goondan.yaml").write_text(changed)
        stack.stop_worker(stack.workers[0])
        stack.start_worker()

        states = {one.full_name: one for one in client.schedules.list()}

    assert states.keys() == {"mine", "clockwork/yearly", "clockwork/weekly"}
    assert states["clockwork/yearly"].paused is not None
    assert states["clockwork/weekly"].next is not None


def test_commands_show_and_change_schedules(stack: LocalStack) -> None:
    env = environment(redis_url=stack.redis_url, bundle=BUNDLE)
    client = stack.client
    wait_until(lambda: len(client.schedules.list()) >= 2, PATIENCE)

    added = goondan("schedules", "add", "often", "ringer", "--every", "1h", "--input", "hello", env=env)
    paused = goondan("schedules", "pause", "yearly", "--reason", "loops", "--by", "ann", env=env)
    listed = goondan("schedules", env=env)
    ran = goondan("schedules", "run", "monthly", "--json", env=env)
    resumed = goondan("schedules", "resume", "clockwork/yearly", env=env)
    refused = goondan("schedules", "remove", "yearly", "--json", env=env)
    removed = goondan("schedules", "remove", "often", env=env)
    unknown = goondan("schedules", "run", "yeerly", "--json", env=env)
    wrong = goondan("schedules", "add", "bad", "ringer", "--cron", "61 * * * *", "--json", env=env)
    both = goondan("schedules", "add", "bad", "ringer", "--cron", "* * * * *", "--every", "1h", env=env)

    assert added.stdout.startswith("often is next due ")
    assert paused.stdout == "clockwork/yearly is paused by ann: loops\n"
    assert "30 2 1 * * UTC" in listed.stdout
    assert "clockwork/yearly is paused by ann: loops" in listed.stderr
    result = client.pending(ran.document["id"]).result(PATIENCE)
    assert result.output["stdout"].startswith("20"), result
    assert resumed.stdout.startswith("clockwork/yearly is next due ")
    assert (refused.exit_code, refused.document["error"]["code"]) == (2, "E_SCHEDULE_OF_BUNDLE")
    assert removed.stdout == "often is removed\n"
    assert (unknown.exit_code, unknown.document["error"]["code"]) == (2, "E_SCHEDULE_NOT_FOUND")
    assert "'yearly'" in unknown.document["error"]["message"]
    assert "bad minute" in wrong.document["error"]["message"]
    assert both.exit_code == 2


def test_client_refuses_invalid_schedule(stack: LocalStack) -> None:
    schedules = stack.client.schedules
    wait_until(lambda: len(schedules.list()) >= 2, PATIENCE)

    with pytest.raises(ToolInputValidationError, match="not the name"):
        schedules.add("a/b", "ringer", every="1h")
    with pytest.raises(ToolInputValidationError, match="exactly one"):
        schedules.add("a", "ringer")
    with pytest.raises(ToolInputValidationError, match=r"args\.command"):
        schedules.add("a", "ringer", every="1h", tool="bash__exec", args={"command": 3})
    with pytest.raises(ScheduleNotFoundError):
        schedules.pause("nothing")
    with pytest.raises(ScheduleOfBundleError):
        schedules.remove("monthly")


def test_slot_begins_turn_with_its_own_trace(stack: LocalStack) -> None:
    client = stack.client
    wait_until(lambda: len(client.schedules.list()) >= 2, PATIENCE)

    pending = client.schedules.run("yearly")

    assert pending.result(PATIENCE).output == {"source": "connector", "type": "schedule.fired", "missed": 0}
    record = client.record(pending.id)
    assert record.call.parent_span_id is None
    [root] = client.trace(record.call.correlation_id).roots
    assert root.id == pending.id


def test_example_writes_its_report() -> None:
    with LocalStack(EXAMPLE) as stack:
        written = stack.client.schedules.run("morning-report").result(PATIENCE)
        cleaned = stack.client.schedules.run("clean-up").result(PATIENCE)

    assert written.output["line"].endswith(" files"), written
    assert cleaned.status == "ok"
