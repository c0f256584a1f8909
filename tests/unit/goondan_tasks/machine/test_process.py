"""What this process hides from others, and where it listens."""

import socket
import subprocess
import sys

import pytest

from goondan_tasks.machine.process import listening, url_of

_PR_GET_DUMPABLE = 3
_PROGRAM = f"""
import ctypes, os, subprocess, sys
from goondan_tasks.machine.process import close_to_other_processes
close_to_other_processes()
ask = "import ctypes; print(ctypes.CDLL(None).prctl({_PR_GET_DUMPABLE}))"
print(ctypes.CDLL(None).prctl({_PR_GET_DUMPABLE}), flush=True)
subprocess.run([sys.executable, "-c", ask], check=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has it")
def test_process_becomes_undumpable_but_not_its_programs() -> None:
    said = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True).stdout

    assert said.split() == ["0", "1"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_free_port_is_found_and_named(host: str) -> None:
    with listening(host, 0) as server:
        assert url_of(server).startswith("http://")
        with socket.create_connection(server.getsockname()[:2], timeout=30) as caller:
            assert caller.getpeername()[1] == server.getsockname()[1]


def test_address_with_colons_stands_in_brackets() -> None:
    with listening("::1", 0) as server:
        assert url_of(server) == f"http://[::1]:{server.getsockname()[1]}"


@pytest.mark.parametrize("host", ["127..0.0.1", ".", "a" * 64, "no host"])
def test_invalid_host_name_is_refused(host: str) -> None:
    with pytest.raises(OSError), listening(host, 0):
        pass


def test_port_that_is_taken_is_refused() -> None:
    with (
        listening("127.0.0.1", 0) as server,
        pytest.raises(OSError, match="in use"),
        listening("127.0.0.1", server.getsockname()[1]),
    ):
        pass
