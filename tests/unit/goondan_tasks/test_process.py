"""What this process hides from others."""

import subprocess
import sys

import pytest

_PR_GET_DUMPABLE = 3
_PROGRAM = f"""
import ctypes, os, subprocess, sys
from goondan_tasks.process import close_to_other_processes
close_to_other_processes()
ask = "import ctypes; print(ctypes.CDLL(None).prctl({_PR_GET_DUMPABLE}))"
print(ctypes.CDLL(None).prctl({_PR_GET_DUMPABLE}), flush=True)
subprocess.run([sys.executable, "-c", ask], check=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has it")
def test_a_process_closes_itself_and_not_the_programs_that_it_starts() -> None:
    said = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True).stdout

    assert said.split() == ["0", "1"]
