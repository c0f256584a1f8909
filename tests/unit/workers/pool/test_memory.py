"""What is asked of the C library."""

import platform
import subprocess
import sys

import pytest

_PROGRAM = """
import threading
from workers.pool.pool import share_arenas

assert share_arenas()
held = []
threads = [threading.Thread(target=lambda: held.append(bytearray(50_000))) for _ in range(32)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
import ctypes
ctypes.CDLL(None).malloc_stats()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has arenas")
def test_threads_share_two_arenas() -> None:
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)

    assert [line for line in ended.stderr.splitlines() if line.startswith("Arena")] == [
        "Arena 0:",
        "Arena 1:",
    ]
