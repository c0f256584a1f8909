"""Files that are rewritten together: all of them, or none."""

import codecs
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from goondan_tasks.errors import ConfigError


def replace_files(texts: Mapping[Path, str]) -> None:
    """Write all files, each with the mode and the byte order mark that it has; links stay.

    Raises:
        ConfigError: one of them cannot be written; those that were have their old text again.
    """
    with ExitStack() as leftovers:
        replacements = [_prepared(file, text, leftovers) for file, text in texts.items()]
        with ExitStack() as made:
            for one in replacements:
                with _refusal(one.file):
                    one.new.replace(one.target)
                made.callback(one.take_back)
            made.pop_all()


@dataclass(slots=True)
class _Replacement:
    """A file, and beside it its texts: the new one, and the old one until all are written."""

    #: as the bundle names it
    file: Path
    #: behind a link stands the file that is meant
    target: Path
    new: Path
    old: Path
    is_stuck: bool = False

    def take_back(self) -> None:
        try:
            self.old.replace(self.target)
        except OSError as error:
            self.is_stuck = True
            raise ConfigError(
                f"{self.file} is rewritten, another file cannot be, and it cannot be put back:"
                f" {_reason(error)}.",
                suggestion=f"Its old text stands in {self.old}; move it back by hand.",
            ) from error

    def drop_old(self) -> None:
        if not self.is_stuck:
            self.old.unlink(missing_ok=True)


def _prepared(file: Path, text: str, leftovers: ExitStack) -> _Replacement:
    with _refusal(file):
        target = file.resolve()
        # who may write any file is held to what its owner says of this one
        if not target.stat().st_mode & 0o222 or not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, "it is read-only")
        new = _beside(target)
        leftovers.callback(new.unlink, missing_ok=True)
        one = _Replacement(file, target, new, _beside(target))
        leftovers.callback(one.drop_old)
        before = target.read_bytes()
        mark = codecs.BOM_UTF8 if before.startswith(codecs.BOM_UTF8) else b""
        for path, data in ((one.new, mark + text.encode()), (one.old, before)):
            path.write_bytes(data)
            shutil.copymode(target, path)
    return one


def _beside(target: Path) -> Path:
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(descriptor)
    return Path(name)


@contextmanager
def _refusal(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {_reason(error)}; nothing has been changed.",
            suggestion="Check the permissions of the file and its directory.",
        ) from error


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
