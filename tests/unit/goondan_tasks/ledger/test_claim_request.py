"""Tokens of claims."""

import subprocess
import sys

# in a process of its own: forking this one, with its threads, is not safe
_FORK = """
import os
from goondan_tasks.ledger.claim_request import new_token
for _ in range(2):
    if os.fork() == 0:
        print(new_token(), flush=True)
        os._exit(0)
    os.wait()
print(new_token())
"""


def test_no_two_processes_make_same_token() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORK], capture_output=True, text=True, check=True, timeout=60
    )
    assert len(set(done.stdout.split())) == 3
