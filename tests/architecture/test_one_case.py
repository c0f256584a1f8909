"""What CI leaves out for another Python: cases, and no test."""

import subprocess
import sys
from collections import Counter

from tests.architecture.sources import ROOT

FILES = ("tests/unit/goondan_tasks/contract/test_names.py", "tests/unit/broker_config/test_settings.py")


def cases(*options: str) -> Counter[str]:
    """Return how many cases each test of some files has."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        # it is forked from a process that has imported plugins of pytest, which warns of that
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        *options,
        *FILES,
    ]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return Counter(line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line)


def test_one_case_option_keeps_one_case_per_test() -> None:
    every = cases()

    assert max(every.values()) > 1
    assert cases("--one-case") == dict.fromkeys(every, 1)
