"""The streams of Turns and calls: made at acceptance, joined and given their lifetime at every end."""

from collections.abc import Callable
from typing import Any

import fakeredis
import pytest
from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.client.reading import Position, StreamReading
from goondan_tasks.client.turn_events import (
    AnswerRestarted,
    ReasoningDelta,
    TextDelta,
    Told,
    ToolCalled,
    TurnEvent,
)
from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import Claim, Stored
from goondan_tasks.ledger.submission import event_submission
from tests.unit.goondan_tasks.ledger.calls import a_call, an_event, claimed, record_of, submission
from workers.thinking.turn_stream import TurnStream

KEEP = 120.5
CALLED = ToolCalled(step=0, id="call_1", call_id="c-1", tool="bash__exec", args={"command": []})
WEEK = 7 * 86_400


@pytest.fixture
def redis() -> Redis:
    return fakeredis.FakeRedis()


@pytest.fixture
def ledger(redis: Redis) -> Ledger:
    return Ledger(redis, Settings.model_validate({"lease_seconds": 60}))


def kept(call: ToolCall) -> ToolCall:
    return call.model_copy(update={"keep": KEEP})


def accepted(ledger: Ledger, call: ToolCall) -> str:
    event = call.tool_name.startswith("goondan")
    ledger.submit_all([event_submission(call) if event else submission(call)], "p1")
    return ledger.keys.turn_stream(identity_of(call))


def entries(redis: Redis, key: str) -> list[list[dict[str, Any]]]:
    rows: Any = redis.xrange(key)
    return [serializer.decode(fields[b"entries"]) for _, fields in rows]


def tell(redis: Redis, key: str, *events: Told) -> None:
    """Write an entry as a worker does."""
    TurnStream(redis, Keys(), key.rpartition(":")[2], True)._write(events)


def text(characters: str, answer_id: str = "a", step: int = 0) -> TextDelta:
    return TextDelta(step=step, text=characters, answer_id=answer_id)


def begun(answer_id: str, step: int = 0) -> AnswerRestarted:
    return AnswerRestarted(step=step, answer_id=answer_id)


def finish(ledger: Ledger, claim: Claim) -> None:
    assert ledger.finish(claim, claim.run.ok("done", None)).run(ledger.redis) is Stored.YES


@pytest.mark.parametrize("call", [a_call(), an_event(1)], ids=["call", "event"])
def test_stream_begins_at_acceptance_ends_with_result(ledger: Ledger, redis: Redis, call: ToolCall) -> None:
    key = accepted(ledger, kept(call))
    assert entries(redis, key) == [[]]
    assert redis.ttl(key) > WEEK

    finish(ledger, claimed(ledger, kept(call)))

    assert entries(redis, key) == [[], [{"type": "end"}]]
    assert 120 <= redis.ttl(key) <= 121


@pytest.mark.parametrize("call", [a_call(), an_event(1)], ids=["call", "event"])
def test_without_keep_there_is_no_stream(ledger: Ledger, redis: Redis, call: ToolCall) -> None:
    key = accepted(ledger, call)
    finish(ledger, claimed(ledger, call))
    assert not redis.exists(key)


def cancelled(ledger: Ledger, call: ToolCall) -> None:
    Reaper(ledger, "https://help/").cancel(identity_of(call), "someone")


def swept(ledger: Ledger, call: ToolCall) -> None:
    """Let a worker die that had begun; it is not run again."""
    claim = claimed(ledger, call)
    ledger.start([(claim.run.id, claim.token)]).run(ledger.redis)
    ledger.redis.zadd(ledger.keys.due, {claim.run.id: 1})
    ledger.redis.set(ledger.keys.swept, 9_999_999_999_999)
    Reaper(ledger, "https://help/").sweep("w2")


def cancelled_together(ledger: Ledger, call: ToolCall) -> None:
    Reaper(ledger, "https://help/").cancel_many([identity_of(call)], "someone")


@pytest.mark.parametrize("end", [cancelled, swept, cancelled_together])
@pytest.mark.parametrize("call", [a_call(), an_event(1)], ids=["call", "event"])
def test_every_end_ends_stream(
    ledger: Ledger, redis: Redis, end: Callable[[Ledger, ToolCall], None], call: ToolCall
) -> None:
    key = accepted(ledger, kept(call))

    end(ledger, kept(call))

    assert record_of(ledger, call).status == "done"
    assert entries(redis, key)[-1] == [{"type": "end"}]
    assert 0 < redis.ttl(key) <= 121


def test_call_that_is_forgotten_leaves_no_stream(ledger: Ledger, redis: Redis) -> None:
    key = accepted(ledger, kept(a_call()))
    finish(ledger, claimed(ledger, kept(a_call())))

    ledger.forget(identity_of(a_call()), "coder")

    assert not redis.exists(key)


def test_overwritten_stream_does_not_stop_call(ledger: Ledger, redis: Redis) -> None:
    call = kept(a_call())
    key = ledger.keys.turn_stream(identity_of(call))
    redis.set(key, "overwritten")

    accepted(ledger, call)
    finish(ledger, claimed(ledger, call))

    assert record_of(ledger, call).status == "done"
    assert (redis.get(key), redis.ttl(key)) == (b"overwritten", -1)


def test_pieces_become_one_entry_per_answer_rest_stays(ledger: Ledger, redis: Redis) -> None:
    call = kept(an_event(1))
    key = accepted(ledger, call)
    tell(redis, key, begun("z"))
    tell(redis, key, text("void", "z"))
    tell(redis, key, begun("a"))
    tell(redis, key, ReasoningDelta(step=0, text="hm / ", answer_id="a"), text('"on', "a"))
    tell(redis, key, text("e 🦆\n", "a"))
    tell(redis, key, CALLED)
    tell(redis, key, begun("b", 1))
    tell(redis, key, text("two", "b", 1))
    before: Any = redis.xrange(key)

    finish(ledger, claimed(ledger, call))

    first, called, second, end = entries(redis, key)[1:]
    since = before[1][0].decode()
    whole = {"type": "answer", "step": 0, "answerId": "a", "since": since, "count": 1}
    assert first == [whole | {"void": ["z"], "pieces": [["reasoning", "hm / "], ["text", '"one 🦆\n']]}]
    assert called == [CALLED.to_wire()]
    assert second[0]["pieces"] == [["text", "two"]]
    assert end == [{"type": "end"}]
    rows: Any = redis.xrange(key)
    assert [row[0] for row in rows[:-1]] == [before[at][0] for at in (0, 5, 6, 8)]
    assert not redis.exists(f"{key}:joined")
    assert 0 < redis.ttl(key) <= 121


@pytest.mark.parametrize("late", [2, 3])
def test_late_piece_of_void_answer_is_left_out(ledger: Ledger, redis: Redis, late: int) -> None:
    told: list[Told] = [begun("a"), text("old"), begun("b"), text("new ", "b"), text("answer", "b")]
    told.insert(len(told) + 2 - late, text("late"))
    key = accepted(ledger, kept(an_event(1)))
    for event in told:
        tell(redis, key, event)

    finish(ledger, claimed(ledger, kept(an_event(1))))

    _, [answer], _ = entries(redis, key)
    assert (answer["answerId"], answer["pieces"]) == ("b", [["text", "new answer"]])


@pytest.mark.parametrize("place", [None, "0-1.0"])
def test_void_answer_piece_after_end_is_omitted(ledger: Ledger, redis: Redis, place: str | None) -> None:
    key = accepted(ledger, kept(an_event(1)))
    for event in (begun("a"), text("old"), begun("b"), text("new", "b")):
        tell(redis, key, event)
    finish(ledger, claimed(ledger, kept(an_event(1))))

    tell(redis, key, text(" late"))

    assert joined(*(event for event, _ in heard(redis, key, place))) == {0: "new"}


def test_stream_without_its_beginning_stays_unchanged(ledger: Ledger, redis: Redis) -> None:
    call = kept(an_event(1))
    key = accepted(ledger, call)
    tell(redis, key, text("one"))
    tell(redis, key, text("two"))
    redis.xtrim(key, maxlen=2, approximate=False)

    finish(ledger, claimed(ledger, call))

    assert [entry[0]["type"] for entry in entries(redis, key)] == ["text", "text", "end"]


def test_stream_too_long_to_join_stays_unchanged(ledger: Ledger, redis: Redis) -> None:
    call = kept(an_event(1))
    key = accepted(ledger, call)
    piece: dict[Any, Any] = {"entries": serializer.encode([text("a").to_wire()]), "answer": "1"}
    with redis.pipeline() as pipe:
        for _ in range(4_000):
            pipe.xadd(key, piece)
        pipe.execute()

    finish(ledger, claimed(ledger, call))

    assert redis.xlen(key) == 4_002
    assert 0 < redis.ttl(key) <= 121


def test_result_stored_again_ends_stream_again(ledger: Ledger, redis: Redis) -> None:
    call = kept(an_event(1))
    key = accepted(ledger, call)
    tell(redis, key, text("one"))
    claim = claimed(ledger, call)
    finish(ledger, claim)
    redis.persist(key)
    redis.hset(ledger.keys.call(claim.run.id), "token", claim.token)
    redis.hset(ledger.keys.call(claim.run.id), "status", "dead")  # as if it had been broken off

    ledger.finish(claim, claim.run.ok("done", None)).run(redis)

    assert 0 < redis.ttl(key) <= 121
    assert [entry[0]["type"] for entry in entries(redis, key)[1:]] == ["answer", "end", "end"]


# What followers read of it


def heard(redis: Redis, key: str, after: str | None = None) -> list[tuple[TurnEvent, str]]:
    rows: Any = redis.xrange(key)
    reading = StreamReading("e", Position.of(after))
    return [(one.event, one.cursor) for one in reading.taken(rows)]


def test_whole_answer_that_is_damaged_is_passed_over(redis: Redis) -> None:
    key = Keys().turn_stream("e")
    redis.xadd(key, {"entries": '[{"type":"answer","step":0,"answerId":"a","since":"x","count":1}]'})
    tell(redis, key, text("one"))
    assert [event for event, _ in heard(redis, key)] == [text("one")]


def joined(*events: TurnEvent) -> dict[int, str]:
    """Return the text of each Step as a client has it."""
    texts: dict[int, str] = {}
    for event in events:
        if isinstance(event, AnswerRestarted):
            texts[event.step] = ""
        elif isinstance(event, TextDelta):
            texts[event.step] = texts.get(event.step, "") + event.text
    return texts


@pytest.fixture
def story(ledger: Ledger, redis: Redis) -> tuple[str, ToolCall]:
    """Write a Turn with an answer that begins anew, a tool call that is told again, and two Steps."""
    call = kept(an_event(1))
    key = accepted(ledger, call)
    for events in (
        [begun("z")],
        [text("vo", "z")],
        [text("id", "z")],
        [begun("a")],
        [ReasoningDelta(step=0, text="hm", answer_id="a"), text("o")],
        [text("ne")],
        [CALLED, CALLED.model_copy(update={"call_id": "c-2"})],
        [begun("b", 1)],
        [text("t", "b", 1)],
        [CALLED],
        [text("wo", "b", 1)],
    ):
        tell(redis, key, *events)
    return key, call


@pytest.mark.parametrize("is_over", [False, True])
def test_follower_that_is_cut_anywhere_gets_rest(
    ledger: Ledger, redis: Redis, story: tuple[str, ToolCall], is_over: bool
) -> None:
    key, call = story
    whole = heard(redis, key)
    uncut = [event for event, _ in whole]
    assert joined(*uncut) == {0: "one", 1: "two"}
    if is_over:
        finish(ledger, claimed(ledger, call))
        assert joined(*(event for event, _ in heard(redis, key))) == {0: "one", 1: "two"}

    for number, (_, cursor) in enumerate(whole, 1):
        rest = [event for event, _ in heard(redis, key, cursor)]
        if not is_over:
            assert [*uncut[:number], *rest] == uncut
        both = [*uncut[:number], *rest]
        assert joined(*both) == {0: "one", 1: "two"}
        called = [one.call_id for one in both if isinstance(one, ToolCalled)]
        assert called == ["c-1", "c-2"]


def test_follower_cut_in_ended_stream_gets_rest(
    ledger: Ledger, redis: Redis, story: tuple[str, ToolCall]
) -> None:
    key, call = story
    finish(ledger, claimed(ledger, call))
    whole = heard(redis, key)

    for number, (_, cursor) in enumerate(whole, 1):
        both = [event for event, _ in [*whole[:number], *heard(redis, key, cursor)]]
        assert joined(*both) == {0: "one", 1: "two"}
        assert [one.call_id for one in both if isinstance(one, ToolCalled)] == ["c-1", "c-2"]


def test_follower_reading_past_end_gets_only_new_pieces(ledger: Ledger, redis: Redis) -> None:
    call = kept(an_event(1))
    key = accepted(ledger, call)
    tell(redis, key, text("o"))
    reading = StreamReading("e")
    rows: Any = redis.xrange(key)
    told = [one.event for one in reading.taken(rows)]
    tell(redis, key, text("ne"))
    finish(ledger, claimed(ledger, call))

    rest: Any = redis.xrange(key, min=f"({reading.last_id}")
    told += [one.event for one in reading.taken(rest)]

    assert told == [text("o"), text("ne")]
    assert reading.has_ended


OUTPUT = b'[{"type":"tool_output","chunk":"x"}]'


def emit(ledger: Ledger, claim: Claim, stream: ToolCall) -> int:
    found: int = ledger.emit(claim.run.id, claim.token, identity_of(stream), OUTPUT).run(ledger.redis)
    return found


@pytest.mark.parametrize("stream", [a_call(), an_event(1)], ids=["own", "of the Turn"])
def test_output_is_added_to_stream_until_that_ends(ledger: Ledger, redis: Redis, stream: ToolCall) -> None:
    key, call = accepted(ledger, kept(stream)), a_call()
    if stream.tool_name != call.tool_name:
        accepted(ledger, call)
    claim = claimed(ledger, call)

    assert emit(ledger, claim, stream) == 1
    assert entries(redis, key) == [[], serializer.decode(OUTPUT)]

    finish(ledger, claim if stream.tool_name == call.tool_name else claimed(ledger, kept(stream)))
    assert emit(ledger, claim, stream) == 0
    assert entries(redis, key) == [[], serializer.decode(OUTPUT), [{"type": "end"}]]


def test_run_with_lost_call_adds_no_output(ledger: Ledger, redis: Redis) -> None:
    key = accepted(ledger, kept(a_call()))
    claim = claimed(ledger, kept(a_call()))
    redis.hset(ledger.keys.call(claim.run.id), "token", "another")

    assert emit(ledger, claim, a_call()) == 0
    assert entries(redis, key) == [[]]


def test_without_stream_output_makes_none(ledger: Ledger, redis: Redis) -> None:
    key = accepted(ledger, a_call())
    claim = claimed(ledger, a_call())

    assert emit(ledger, claim, a_call()) == 0
    redis.set(key, "overwritten")
    assert emit(ledger, claim, a_call()) == 0
    assert redis.get(key) == b"overwritten"


def test_joining_answer_pieces_leaves_output_unchanged(ledger: Ledger, redis: Redis) -> None:
    turn = an_event(1)
    key = accepted(ledger, kept(turn))
    accepted(ledger, a_call())
    claim = claimed(ledger, a_call())
    tell(redis, key, text("one "), text("two"))
    emit(ledger, claim, turn)
    tell(redis, key, text(" three"))
    finish(ledger, claimed(ledger, kept(turn)))

    assert serializer.decode(OUTPUT) in entries(redis, key)
    assert len(entries(redis, key)) == 4
