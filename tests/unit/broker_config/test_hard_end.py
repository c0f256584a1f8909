"""The latest end of a process that was asked to stop."""

import subprocess
import sys

from broker_config.hard_end import EXIT_HARD

_STUCK = """\
import signal, threading
from broker_config.hard_end import HardEnd

end = HardEnd()
end.start()
end.start()
end.within(1800)
end.call_off()
end.within(3600)
signal.signal(signal.SIGUSR1, lambda *_: end.within(0.0))
signal.raise_signal(signal.SIGUSR1)
threading.Lock().acquire() and threading.Event().wait()
"""


def test_stuck_process_ends_at_earliest_set_time() -> None:
    stuck = subprocess.run([sys.executable, "-c", _STUCK], capture_output=True, text=True, timeout=60)

    assert stuck.returncode == EXIT_HARD
    assert "did not end in time" in stuck.stderr
