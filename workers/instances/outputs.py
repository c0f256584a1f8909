"""Outputs that are too large for a result are stored as JSON files in the instance's workdir.

Models read them with their file tools. Producers on any machine read them in parts, through a worker
(:mod:`workers.tools.system_tools`).
"""

import os
import re
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from goondan_tasks.contract.calls import Run
from goondan_tasks.contract.errors import OutputGoneError, OutputNotStoredError, ToolInputValidationError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.instances.table import encoded
from goondan_tasks.machine.atomic_file import write_whole
from goondan_tasks.machine.inner_path import InnerPath, unresolved
from workers.concurrency.event_loop import beside_loop, is_on_loop
from workers.concurrency.threads import on_new_thread
from workers.instances.paths import open_file
from workers.instances.workdirs import InstanceWorkdirs

DIRECTORY = ".outputs"

#: how much of a stored output the result itself contains
PREVIEW_BYTES = 2048

_FILE_NAME = re.compile(r"[A-Za-z0-9%_-]{1,200}-[0-9a-f]{16}\.json")
_OURS = re.compile(rf"{_FILE_NAME.pattern}|\.[0-9a-f]{{16}}\.tmp")


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """An output in a file: its path relative to the workdir, its size in bytes, and its beginning."""

    path: str
    size: int
    preview: str

    def to_wire(self) -> JsonObject:
        """Return the output that stands in the result."""
        return {"path": self.path, "size": self.size, "preview": self.preview}


@dataclass(frozen=True, slots=True)
class Outputs:
    """The output files of one workspace; writing one removes those older than ``keep_seconds``."""

    workdirs: InstanceWorkdirs
    max_bytes: int
    keep_seconds: float

    async def store(self, run: Run, data: bytes) -> StoredOutput:
        """Store the JSON of a run's output.

        Each run has its own file name, so that a run that has lost its claim does not change a newer run's
        file.

        Raises:
            OutputNotStoredError: the disk is full or read-only, or the directory is something else.
        """
        name = f"{encoded(run.id)}-{secrets.token_hex(8)}.json"
        try:
            write = partial(self._write, run, name, data)
            if is_on_loop():
                await beside_loop(write, on_new_thread)
            else:
                write()
        except OSError as error:
            reason = (
                f"{len(data)} bytes of output could not be written to {DIRECTORY}: {error.strerror or error}."
            )
            raise OutputNotStoredError(f"The tool succeeded, but {reason}") from error
        return StoredOutput(f"{DIRECTORY}/{name}", len(data), _beginning(data, self.max_bytes))

    def _write(self, run: Run, name: str, data: bytes) -> None:
        workdir = self.workdirs.open(run.call.agent_name, run.call.instance_key)
        with _place(workdir, ()).open_directory(make=True) as directory:
            _remove_older(directory, time.time() - self.keep_seconds)
            write_whole(name, data, directory=directory, mode=0o600)


def read_part(workdir: Path, path: str, *, offset: int, limit: int) -> tuple[bytes, int]:
    """Return at most ``limit`` bytes of a stored output, and its size.

    Only stored outputs can be read, and no link is followed.

    Raises:
        ToolInputValidationError: it is not the path of an output, or ends before ``offset``.
        OutputGoneError: it no longer exists.
        OSError: it cannot be read.
    """
    folder, _, name = path.partition("/")
    if folder != DIRECTORY or not _FILE_NAME.fullmatch(name):
        raise ToolInputValidationError(f"{path!r:.300} is not the path of a call's output.")
    try:
        with (
            _place(workdir, (name,)).open_parent() as (directory, _),
            os.fdopen(open_file(directory, name, os.O_RDONLY), "rb") as file,
        ):
            size = os.fstat(file.fileno()).st_size
            if offset > size:
                raise ToolInputValidationError(
                    f"Offset {offset} is past the end: the output has {size} bytes."
                )
            file.seek(offset)
            return file.read(limit), size
    except FileNotFoundError as error:
        raise OutputGoneError(f"The output is not there any more: {path}") from error


def _place(workdir: Path, parts: tuple[str, ...]) -> InnerPath:
    # without locate(), so that a link is an error even if it stays inside the workdir
    return unresolved(workdir, (DIRECTORY, *parts), "/".join((DIRECTORY, *parts)))


def _remove_older(directory: int, latest: float) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):  # another worker may have removed it
                if _OURS.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_mtime < latest:
                    os.unlink(entry.name, dir_fd=directory)


def _beginning(data: bytes, max_bytes: int) -> str:
    """Return the first characters; as a JSON string they take at most twice their bytes."""
    return data[: min(PREVIEW_BYTES, max_bytes // 4)].decode("utf-8", "ignore")
