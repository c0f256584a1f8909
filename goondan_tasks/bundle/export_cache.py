"""Caches the records of typed entries for the next load: importing them in a child takes 0.2 s.

A record is valid until a file changes that the import has read: a module, wherever it is, or any other file
that it opened. Changes show in ``ctime``, which no program can set back. A record of another user, or one
that others can write, is not trusted; a damaged one counts as missing.
"""

import contextlib
import hashlib
import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ValidationError

from broker_config.settings import Settings, SettingsError
from goondan_tasks.authoring.entry import MAX_PATHS, ProbeRecord
from goondan_tasks.machine.atomic_file import make_private_directory, write_whole

#: a file that changed this recently may change again with the same ``ctime``
SETTLED_SECONDS = 2.0
#: how long a record is valid
KEPT_SECONDS = 30 * 86_400.0
_MOST_BYTES = 4 * MAX_PATHS


class _Kept(BaseModel):
    record: ProbeRecord
    #: by path, see :func:`_state_of`
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class ExportCache:
    """This user's records in one directory."""

    folder: Path

    @classmethod
    def of_user(cls) -> Self | None:
        """Return the cache in ``GOONDAN_CACHE_DIR``; ``None`` if the settings have no directory."""
        try:
            return cls(Settings.load().cache_path / "exports")
        except (SettingsError, RuntimeError):  # a user without a home
            return None

    def records(
        self, files: Sequence[Path], import_files: Callable[[Sequence[Path]], Sequence[ProbeRecord]]
    ) -> list[ProbeRecord]:
        """Return a record for each file, in order; import files without a valid record."""
        found = {file: self._read(file) for file in files}
        missing = [file for file, record in found.items() if record is None]
        for file, record in zip(missing, import_files(missing), strict=True):
            found[file] = record
            if record.problem is None and record.files:
                self._write(file, record)
        return [record for record in found.values() if record is not None]

    def _read(self, file: Path) -> ProbeRecord | None:
        with contextlib.suppress(OSError, ValidationError):
            descriptor = os.open(
                self._place(file), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            )
            with os.fdopen(descriptor, "rb") as stream:
                found = os.fstat(descriptor)
                is_ours = found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
                if not is_ours or not stat.S_ISREG(found.st_mode):
                    return None
                kept = _Kept.model_validate_json(stream.read(_MOST_BYTES))
            is_fresh = found.st_mtime > time.time() - KEPT_SECONDS
            if is_fresh and all(_state_of(path)[0] == state for path, state in kept.files.items()):
                return kept.record
        return None

    def _write(self, file: Path, record: ProbeRecord) -> None:
        states = {path: _state_of(path) for path in record.files}
        if max(changed for _, changed in states.values()) > time.time() - SETTLED_SECONDS:
            return
        files = {path: state for path, (state, _) in states.items()}
        kept = _Kept(record=record.model_copy(update={"files": ()}), files=files)
        with contextlib.suppress(OSError):  # without a cache, only time is lost
            make_private_directory(self.folder)
            write_whole(self._place(file), kept.model_dump_json().encode(), mode=0o600)
            for old in self.folder.glob("*.json"):
                if old.stat().st_mtime < time.time() - KEPT_SECONDS:
                    old.unlink()

    def _place(self, file: Path) -> Path:
        """Return the path of a record, which depends on the interpreter and its ``sys.path`` too."""
        named = "\0".join([str(file), sys.executable, *sys.path]).encode("utf-8", "surrogateescape")
        return self.folder / f"{hashlib.sha256(named).hexdigest()[:32]}.json"


def _state_of(path: str) -> tuple[str, float]:
    """Return an identifier of a file's version, and its ``ctime``; an empty one if it is no file."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):  # a NUL in the path
        return "", 0.0
    if not stat.S_ISREG(found.st_mode):
        return "", 0.0
    return f"{found.st_ino}-{found.st_size}-{found.st_ctime_ns}", found.st_ctime
