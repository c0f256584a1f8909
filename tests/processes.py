"""Processes of a test's own, and looking at others from outside, through ``/proc``."""

import multiprocessing
from collections.abc import Iterator
from multiprocessing.pool import Pool
from pathlib import Path

from tests.forked_programs import ENVIRONMENT

PARENT = 1
SESSION = 3


def process_pool(count: int, module: str) -> Pool:
    """Return processes that are forked from one which has imported the test's module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    return context.Pool(count)


def runs(pid: int) -> bool:
    """Say whether the process runs; one that ended and waits to be reaped does not."""
    return any(number == pid for number, _ in _running())


def session_members(session: int) -> list[int]:
    """List the running processes of a session."""
    return [number for number, stat in _running() if stat[SESSION] == str(session)]


def children_of(pid: int) -> list[int]:
    """List the running children of a process."""
    return [number for number, stat in _running() if stat[PARENT] == str(pid)]


def lease_guards_of(worker: int) -> list[int]:
    """List the processes that keep a worker's leases: one, or none while it is replaced."""
    return [
        child
        for child in children_of(worker)
        if b"lease_guard.py" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def with_environment(entry: str) -> list[int]:
    """List the running processes that were started with ``NAME=value`` in their environment."""
    return [number for number, _ in _running() if entry.encode() in _environment(number)]


def _running() -> Iterator[tuple[int, list[str]]]:
    """Yield each process that has not ended, with its fields of ``/proc/<pid>/stat`` from the state on."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] not in "ZX":
            yield int(path.parent.name), fields


def _environment(pid: int) -> list[bytes]:
    forked = Path(f"/proc/{pid}/fd/{ENVIRONMENT}")
    try:
        is_forked = forked.is_symlink() and forked.readlink().name.startswith("memfd:environment")
        return (forked if is_forked else Path(f"/proc/{pid}/environ")).read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
