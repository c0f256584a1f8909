"""What waits in the mailbox of an instance."""

from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.messages import JsonObject, ToolCall
from goondan_tasks.contract.names import DELEGATE_RESULT_TOOL, EVENT_TOOL
from goondan_tasks.history.mailbox import MOST_EVENTS, Mailbox, read_mailbox
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.submission import event_submission
from tests.unit.goondan_tasks.ledger.calls import an_event


def put(ledger: Ledger, *calls: ToolCall) -> list[str]:
    ledger.submit_all([event_submission(call) for call in calls], "p1")
    return [identity_of(call) for call in calls]


def mailbox(ledger: Ledger, instance: str = "i", limit: int = 50) -> Mailbox:
    return read_mailbox(ledger, "coder", instance, limit)


def event(number: int, **payload: object) -> ToolCall:
    return an_event(number, payload={"type": "agent.request", **payload})


def test_events_show_sender_time_text_in_order(ledger: Ledger) -> None:
    source: JsonObject = {"kind": "connector", "name": "slack"}
    calls = [
        event(1, input="Fix the\nbuild", source=source),
        an_event(2, asker="planner", tool=EVENT_TOOL, payload={"input": {"n": 1}}),
        an_event(3, asker="planner", tool=DELEGATE_RESULT_TOOL, payload={"response": "done"}),
    ]
    ids = put(ledger, calls[0].model_copy(update={"auth": {"subjects": {"user": "ann"}}}), *calls[1:])

    found = mailbox(ledger)

    assert (found.agent, found.instance_key, found.count) == ("coder", "i", 3)
    assert [(one.id, one.kind, one.sender, one.user, one.text.text) for one in found.events] == [
        (ids[0], "request", "slack", "ann", "Fix the\nbuild"),
        (ids[1], "event", "planner@j", None, '{"n":1}'),
        (ids[2], "answer", "planner@j", None, "done"),
    ]
    assert {one.state for one in found.events} == {"queued"}
    assert found.events[0].since.startswith("20")
    assert found.events[0].correlation_id == "c1"


def test_full_mailbox_shows_its_beginning_and_its_count(ledger: Ledger) -> None:
    put(ledger, *(event(number, input="x" * 2_000) for number in range(600)))

    found = mailbox(ledger)
    assert (found.count, len(found.events)) == (600, 50)
    assert (found.events[0].text.size, found.events[0].text.is_cut) == (2_000, True)
    assert len(found.events[0].text.text) == 500
    assert len(mailbox(ledger, limit=5_000).events) == MOST_EVENTS


def test_ended_events_are_left_out_and_secrets_hidden(ledger: Ledger) -> None:
    ids = put(ledger, event(1), event(2, input="my password=opensesame"), event(3, input={"token": "gdn_1"}))
    assert list(Reaper(ledger, "https://help/").cancel_many(ids[:1], "p1")) == ids[:1]

    assert [one.text.text for one in mailbox(ledger).events] == ["my password=***", '{"token":"***"}']
    assert mailbox(ledger, "other").events == ()


def test_damaged_mailbox_and_records_show_nothing(ledger: Ledger) -> None:
    ids = put(ledger, event(1), event(2, payload={"input": None}))
    ledger.redis.delete(ledger.keys.call(ids[0]))
    assert [one.id for one in mailbox(ledger).events] == ids[1:]
    ledger.redis.delete(ledger.keys.mailbox("coder@i"))
    ledger.redis.set(ledger.keys.mailbox("coder@i"), "of another program")
    assert (mailbox(ledger).count, mailbox(ledger).events) == (0, ())
