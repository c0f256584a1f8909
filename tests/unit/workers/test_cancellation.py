"""One run's cancellation: set once, and everybody who asked is told once."""

import pytest

from goondan_tasks.contract.errors import ToolCancelledError, ToolTimeoutError
from workers.cancellation import Cancellation


def test_cancel_listeners_are_called_once_in_order() -> None:
    cancellation, told = Cancellation(), list[str]()
    cancellation.on_cancel(lambda: told.append("first"))
    cancellation.on_cancel(lambda: told.append("second"))
    assert not cancellation.is_set()
    cancellation.set(ToolCancelledError())
    cancellation.set(ToolTimeoutError())
    assert cancellation.is_set()
    assert told == ["first", "second"]


def test_first_reason_counts() -> None:
    cancellation, error = Cancellation(), ToolCancelledError()
    cancellation.set(error)
    cancellation.set(ToolTimeoutError())
    assert cancellation.error is error


def test_late_cancel_listener_is_called_at_once() -> None:
    cancellation, told = Cancellation(), list[str]()
    cancellation.set(ToolCancelledError())
    forget = cancellation.on_cancel(lambda: told.append("late"))
    forget()
    assert told == ["late"]


def test_forgotten_callback_is_not_called() -> None:
    cancellation, told = Cancellation(), list[str]()
    forget = cancellation.on_cancel(lambda: told.append("forgotten"))
    forget()
    forget()
    cancellation.set(ToolCancelledError())
    assert told == []


def test_callback_may_forget_itself_while_called() -> None:
    cancellation, told = Cancellation(), list[str]()

    def callback() -> None:
        told.append("told")
        forget()

    forget = cancellation.on_cancel(callback)
    cancellation.set(ToolCancelledError())
    assert told == ["told"]


@pytest.mark.parametrize("is_lost", [False, True])
def test_end_callbacks_run_unless_claim_is_lost(is_lost: bool) -> None:
    cancellation, told = Cancellation(), list[str]()
    cancellation.on_cancel(lambda: told.append("cancel only"))
    cancellation.on_cancel(lambda: told.append("end"), or_end=True)
    cancellation.end(is_lost=is_lost)
    cancellation.end(is_lost=is_lost)
    assert (told, cancellation.is_over) == ([] if is_lost else ["end"], not is_lost)


def test_end_callback_added_after_run_is_called_immediately() -> None:
    cancellation, told = Cancellation(), list[str]()
    cancellation.end()
    cancellation.on_cancel(lambda: told.append("end"), or_end=True)()
    assert told == ["end"]


def test_cancelled_runs_end_callback_is_called_once() -> None:
    cancellation, told = Cancellation(), list[str]()
    cancellation.on_cancel(lambda: told.append("told"), or_end=True)
    cancellation.set(ToolCancelledError())
    cancellation.end()
    assert told == ["told"]


def test_no_callback_is_called_once_run_has_ended() -> None:
    cancellation, told = Cancellation(), list[str]()
    forget = cancellation.on_cancel(lambda: told.append("too late"))
    cancellation.end()
    forget()
    cancellation.set(ToolCancelledError())
    assert (told, cancellation.is_set()) == ([], True)
