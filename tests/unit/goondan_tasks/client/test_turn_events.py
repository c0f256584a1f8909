"""What a client is told of a Turn that is run again, and of an answer that begins anew."""

from goondan_tasks.client import (
    AnswerRestarted,
    ReasoningDelta,
    TextDelta,
    TokensUsed,
    ToolAnswered,
    ToolCalled,
    ToolEmitted,
    ToolRestarted,
    TurnEvent,
)
from goondan_tasks.client.turn_events import EventFilter, Told

CALLED = ToolCalled(step=0, id="call_1", call_id="c-1", tool="bash__exec", args={"command": "ls"})
ANSWERED = ToolAnswered(step=0, id="call_1", call_id="c-1", tool="bash__exec", status="ok", output="a")
USED = TokensUsed(step=0, usage={"input": 1, "output": 2}, request_id="r-1")


def heard(*told: Told) -> list[TurnEvent]:
    event_filter = EventFilter()
    return [event for one in told for event in event_filter.passed(one)]


def begun(answer_id: str, step: int = 0) -> AnswerRestarted:
    return AnswerRestarted(step=step, answer_id=answer_id)


def text(answer_id: str, characters: str, step: int = 0) -> TextDelta:
    return TextDelta(step=step, text=characters, answer_id=answer_id)


def test_repeated_events_after_death_are_left_out() -> None:
    pending = ANSWERED.model_copy(update={"status": "pending"})
    other_ask = USED.model_copy(update={"request_id": "r-2"})

    assert heard(CALLED, pending, USED, CALLED, pending, USED) == [CALLED, pending, USED]
    # the same call has its final result by then; and the model was asked once more in the same Step
    assert heard(pending, USED, ANSWERED, other_ask) == [pending, USED, ANSWERED, other_ask]


def test_first_answer_of_step_is_no_restart() -> None:
    one, two = text("a", "one"), text("b", "two", step=1)

    assert heard(begun("a"), one, begun("b", step=1), two) == [one, two]


def test_second_answer_of_step_voids_text_of_first() -> None:
    thought = ReasoningDelta(step=0, text="hm", answer_id="a")

    assert heard(begun("a"), thought, begun("b"), text("b", "two")) == [
        thought,
        begun("b"),
        text("b", "two"),
    ]


def test_answer_cut_before_first_word_is_omitted() -> None:
    assert heard(begun("a"), begun("b"), text("b", "two")) == [text("b", "two")]


def test_late_pieces_of_void_answer_are_left_out() -> None:
    one, two = text("a", "one"), text("b", "two")

    assert heard(one, begun("b"), text("a", "late"), begun("a"), two) == [one, begun("b"), two]


def test_restart_with_lost_entry_comes_with_first_piece() -> None:
    assert heard(text("a", "one"), text("b", "two")) == [text("a", "one"), begun("b"), text("b", "two")]


def emitted(seq: int, chunk: object = "x", attempt: int = 1, call_id: str = "c-1") -> ToolEmitted:
    return ToolEmitted(
        tool_call_id="call_1", call_id=call_id, tool="bash__exec", attempt=attempt, seq=seq, chunk=chunk
    )


def restarted(attempt: int, seq: int = 0) -> ToolRestarted:
    return ToolRestarted(tool_call_id="call_1", call_id="c-1", tool="bash__exec", attempt=attempt, seq=seq)


def test_output_written_twice_is_passed_on_once() -> None:
    one, two, other = emitted(0), emitted(1), emitted(0, call_id="c-2")

    assert heard(one, two, one, other, two) == [one, two, other]


def test_output_of_second_run_voids_output_of_first() -> None:
    one, again = emitted(0), emitted(0, attempt=2)

    assert heard(one, again, emitted(1)) == [one, restarted(2), again]


def test_first_output_of_call_voids_nothing() -> None:
    assert heard(emitted(0, attempt=3)) == [emitted(0, attempt=3)]
    assert heard(restarted(1), emitted(1)) == [emitted(1)]


def test_handler_restarting_within_run_voids_output_once() -> None:
    one, again, late = emitted(0), restarted(1, seq=1), emitted(0, attempt=2)

    assert heard(one, again, again, emitted(2)) == [one, again, emitted(2)]
    assert heard(one, again, late) == [one, again, late]
