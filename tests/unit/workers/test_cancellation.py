"""One run's cancellation: set once, and everybody who asked is told once."""

import pytest

from goondan_tasks.contract.errors import ToolCancelledError, ToolTimeoutError
from workers.cancellation import Cancellation


def test_who_asked_is_told_in_order_and_once() -> None:
    cancellation, told = Cancellation(), list[str]()
    cancellation.on_cancel(lambda: told.append("first"))
    cancellation.on_cancel(lambda: told.append("second"))
    assert not cancellation.is_set()
    cancellation.set(ToolCancelledError())
    cancellation.set(ToolTimeoutError())
    assert cancellation.is_set()
    assert told == ["first", "second"]


def test_the_first_reason_counts() -> None:
    cancellation, error = Cancellation(), ToolCancelledError()
    cancellation.set(error)
    cancellation.set(ToolTimeoutError())
    assert cancellation.error is error


def test_who_asks_too_late_is_told_at_once() -> None:
    cancellation, told = Cancellation(), list[str]()
    cancellation.set(ToolCancelledError())
    forget = cancellation.on_cancel(lambda: told.append("late"))
    forget()
    assert told == ["late"]


def test_who_need_not_be_told_any_more_is_not() -> None:
    cancellation, told = Cancellation(), list[str]()
    forget = cancellation.on_cancel(lambda: told.append("forgotten"))
    forget()
    forget()
    cancellation.set(ToolCancelledError())
    assert told == []


def test_a_callback_may_ask_to_be_forgotten_while_it_is_told() -> None:
    cancellation, told = Cancellation(), list[str]()

    def callback() -> None:
        told.append("told")
        forget()

    forget = cancellation.on_cancel(callback)
    cancellation.set(ToolCancelledError())
    assert told == ["told"]


@pytest.mark.parametrize("is_lost", [False, True])
def test_end_of_a_run_is_told_to_those_who_asked_for_it_unless_its_claim_is_lost(is_lost: bool) -> None:
    cancellation, told = Cancellation(), list[str]()
    cancellation.on_cancel(lambda: told.append("cancel only"))
    cancellation.on_cancel(lambda: told.append("end"), or_end=True)
    cancellation.end(is_lost=is_lost)
    cancellation.end(is_lost=is_lost)
    assert (told, cancellation.is_over) == ([] if is_lost else ["end"], not is_lost)


def test_callback_for_the_end_is_called_at_once_after_the_run_has_ended() -> None:
    cancellation, told = Cancellation(), list[str]()
    cancellation.end()
    cancellation.on_cancel(lambda: told.append("end"), or_end=True)()
    assert told == ["end"]


def test_callback_for_the_end_is_called_once_if_the_run_is_cancelled_first() -> None:
    cancellation, told = Cancellation(), list[str]()
    cancellation.on_cancel(lambda: told.append("told"), or_end=True)
    cancellation.set(ToolCancelledError())
    cancellation.end()
    assert told == ["told"]


def test_no_callback_is_called_once_the_run_has_ended() -> None:
    cancellation, told = Cancellation(), list[str]()
    forget = cancellation.on_cancel(lambda: told.append("too late"))
    cancellation.end()
    forget()
    cancellation.set(ToolCancelledError())
    assert (told, cancellation.is_set()) == ([], True)
