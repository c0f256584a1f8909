"""Being asked to stop."""

import os
import signal

import pytest

from goondan_tasks.cli.interruption import Interruption


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_the_first_signal_asks_for_an_orderly_end(number: signal.Signals, exit_code: int) -> None:
    interruption = Interruption()

    with interruption.listening():
        os.kill(os.getpid(), number)

        assert interruption.asked.wait(30)
    assert interruption.exit_code == exit_code


def test_the_second_signal_ends_at_once() -> None:
    interruption = Interruption()

    with interruption.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.asked.wait(30)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert interruption.exit_code == 143


def test_afterwards_signals_mean_what_they_did_before() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

    with Interruption().listening():
        assert signal.getsignal(signal.SIGTERM) not in before

    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_under_nohup_the_end_of_the_terminal_asks_for_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interruption = Interruption()
    try:
        with interruption.listening():
            signal.raise_signal(signal.SIGHUP)

            assert not interruption.asked.is_set()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_hangs_up_twice_ends_nothing_at_once() -> None:
    interruption = Interruption()

    with interruption.listening():
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)

    assert interruption.exit_code == 129
