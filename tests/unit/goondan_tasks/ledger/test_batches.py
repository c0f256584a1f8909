"""Many calls accepted by one script, on a Redis in memory."""

import pytest
from redis import Redis

from broker_config.queues import wake_up_key
from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.ledger import submission as submission_module
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.submission import event_submission
from tests.unit.goondan_tasks.ledger.calls import a_call, an_event, submission, submit


def calls(count: int, **fields: object) -> list[ToolCall]:
    return [a_call(turn_id=f"turn-{number}", **fields) for number in range(count)]


def test_batch_is_one_script_whatever_its_agents(ledger: Ledger, redis: Redis) -> None:
    coders, writer = calls(3), a_call().model_copy(update={"agent_name": "writer"})

    script_call = ledger.submit_batch([submission(call) for call in (*coders, writer)], "p1")
    admissions = ledger.submit_all([submission(call) for call in (*coders, writer)], "p1")

    assert script_call.keys[1:] == [
        *("goondan:calls:coder", "agent.coder", "agent.coder.bell"),
        *("goondan:calls:writer", "agent.writer", "agent.writer.bell"),
    ]
    assert [admission.is_new for admission in admissions] == [True] * 4
    assert [redis.llen(queue) for queue in ("agent.coder", "agent.writer")] == [3, 1]
    assert [redis.llen(wake_up_key(queue)) for queue in ("agent.coder", "agent.writer")] == [1, 1]
    assert {record.id for record in ledger.recent(["writer"], 10)} == {identity_of(writer)}


def test_call_twice_in_batch_is_same_call(ledger: Ledger, redis: Redis) -> None:
    call, other = a_call(), a_call().model_copy(update={"args": {"command": "rm"}})
    admissions = ledger.submit_all([submission(call), submission(call), submission(other)], "p1")
    assert [(one.is_new, one.is_conflict, one.status) for one in admissions] == [
        (True, False, "queued"),
        (False, False, "queued"),
        (False, True, "queued"),
    ]
    assert redis.llen("agent.coder") == 1


def test_batch_of_known_calls_only_adds_producer(ledger: Ledger, redis: Redis) -> None:
    for call in calls(2):
        submit(ledger, call)
    redis.delete(wake_up_key("agent.coder"))

    admissions = ledger.submit_all([submission(call) for call in calls(2)], "p2")

    assert [admission.is_new for admission in admissions] == [False, False]
    assert (redis.llen("agent.coder"), redis.llen(wake_up_key("agent.coder"))) == (2, 0)
    assert redis.hget(f"goondan:call:{identity_of(calls(1)[0])}", "producers") == b"p1 p2"


def test_calls_of_batch_are_queued_one_after_another(ledger: Ledger, redis: Redis) -> None:
    ledger.submit_all([submission(call) for call in calls(20)], "p1")
    queued = [redis.hget(f"goondan:call:{identity_of(call)}", "queuedAt") for call in calls(20)]
    moments = [float(moment or 0) for moment in queued]
    assert sorted(set(moments)) == moments


@pytest.mark.parametrize(("most_calls", "most_bytes"), [(4, 10**6), (10**6, 2000), (10**6, 1)])
def test_large_batch_is_cut_into_bounded_scripts(
    ledger: Ledger, redis: Redis, monkeypatch: pytest.MonkeyPatch, most_calls: int, most_bytes: int
) -> None:
    monkeypatch.setattr(submission_module, "BATCH_CALLS", most_calls)
    monkeypatch.setattr(submission_module, "BATCH_BYTES", most_bytes)
    submit(ledger, calls(7)[6])
    submissions = [submission(call) for call in calls(9)]

    batches = list(submission_module.batches(submissions))
    admissions = ledger.submit_all(submissions, "p1")

    assert [one for batch in batches for one in batch] == submissions
    assert all(len(batch) <= most_calls for batch in batches)
    assert len(batches) > 1
    assert [number for number, one in enumerate(admissions) if not one.is_new] == [6]
    assert redis.llen("agent.coder") == 9


def test_largest_batch_fits_into_one_script(ledger: Ledger, redis: Redis) -> None:
    submissions = [submission(call) for call in calls(submission_module.BATCH_CALLS, correlation_id="job-1")]
    assert all(one.is_new for one in ledger.submit_all(submissions, "p1"))
    assert redis.zcard("goondan:due") == redis.zcard("goondan:trace:job-1") == submission_module.BATCH_CALLS


def test_events_and_calls_may_be_in_one_batch(ledger: Ledger, redis: Redis) -> None:
    event, call = an_event(1, "x"), a_call()
    ledger.submit_all([event_submission(event), submission(call)], "p1")
    assert redis.lrange("goondan:mailbox:coder@x", 0, -1) == [identity_of(event).encode()]
    assert [redis.llen(queue) for queue in ("agent.coder", "agent.coder.events")] == [1, 1]
