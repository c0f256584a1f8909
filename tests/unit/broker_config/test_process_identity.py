"""Which process this is."""

import os
import subprocess
import sys

from broker_config.process_identity import this_process

SHOW = "from broker_config.process_identity import this_process; us = this_process(); print(us.id, us.place)"


def test_process_identity_is_stable_with_pid_and_host() -> None:
    assert this_process() == this_process()
    assert this_process().name == f"{os.getpid()}@{os.uname().nodename}"


def test_neighbouring_process_shares_place_but_not_id() -> None:
    command = [sys.executable, "-c", SHOW]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)

    other, _, place = shown.stdout.strip().partition(" ")
    assert other != this_process().id
    assert place == this_process().place


def test_forked_child_has_its_own_identity() -> None:
    ours = this_process().id
    code = (
        "import os, sys\n"
        "from broker_config.process_identity import this_process\n"
        "ours = this_process()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(int(this_process().id == ours.id or this_process().pid != os.getpid()))\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )

    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

    assert this_process().id == ours
