"""Threads whose death ends their process."""

import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys, threading
from broker_config.vital_thread import vital_thread

told_to_stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: told_to_stop.set())

def target():
    if {raises}:
        raise LookupError("a fault of ours")

thread = vital_thread("heart", target, is_over=lambda: {is_over})
thread.start()
is_told = told_to_stop.wait({seconds})
thread.join()  # it may still print why it has ended
sys.exit(7 if is_told else 0)
"""


@pytest.mark.parametrize(
    ("raises", "is_over", "status"), [(True, False, 7), (False, False, 7), (True, True, 0), (False, True, 0)]
)
def test_early_end_of_vital_thread_stops_process(raises: bool, is_over: bool, status: int) -> None:
    program = PROGRAM.format(raises=raises, is_over=is_over, seconds=30 if status else 0.5)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert run.returncode == status
    assert ("the thread heart has died" in run.stderr) == (status == 7)
