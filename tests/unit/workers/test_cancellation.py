"""One run's cancellation: set once, and everybody who asked is told once."""

from goondan_tasks.errors import ToolCancelledError, ToolTimeoutError
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


def test_nobody_is_told_once_the_run_has_ended() -> None:
    cancellation, told = Cancellation(), list[str]()
    forget = cancellation.on_cancel(lambda: told.append("too late"))
    cancellation.end()
    forget()
    cancellation.set(ToolCancelledError())
    assert (told, cancellation.is_set()) == ([], True)
