"""Which files of a directory belong to a bundle, and their text.

A file belongs to it if its basename is one of the specification's (``goondan.yaml``, ``tools.yaml``,
…), or if one of its lines says an ``apiVersion`` of ours: so a bundle may name its files as it likes,
and other programs' YAML beside it (a compose file, a workflow) is never read.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from goondan_tasks.bundle.findings import ConfigCode, FieldError
from goondan_tasks.bundle.nodes import TextFault, parse_fault

MAX_BYTES = 1_048_576

_SUFFIXES = (".yaml", ".yml")
_BASENAMES = {
    "goondan",
    "resources",
    *(
        name + plural
        for name in ("model", "agent", "tool", "extension", "connector", "connection", "swarm")
        for plural in ("", "s")
    ),
}
_SKIPPED_FOLDERS = {"dist", "node_modules"}
_OURS = re.compile(
    rb"""^[ \t]*["']?apiVersion["']?[ \t]*:[ \t]*["']?(goondan\.ai|agents\.example\.io)/""", re.M
)


def bundle_files(path: Path) -> list[Path]:
    """Return the bundle's files: ``path`` itself, or those under it, ``goondan.yaml`` first."""
    if not path.is_dir():
        return [path]
    return sorted(_candidates(path), key=lambda file: (file.stem != "goondan", str(file)))


def read_text(file: Path) -> tuple[str, list[TextFault]]:
    """Return the text of a file, or why there is none."""
    try:
        data = _first_bytes(file, MAX_BYTES + 1)
    except OSError as error:
        reason = f"the file cannot be read: {error.strerror or error}"
        return "", [parse_fault(1, reason, "Check the path and its permissions.")]
    if len(data) > MAX_BYTES:
        too_large = FieldError(
            "the file is larger than 1 MiB", "Split it into several files.", ConfigCode.FILE_TOO_LARGE
        )
        return "", [TextFault(1, too_large)]
    try:
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return "", [parse_fault(line, "the file is not UTF-8", "Save it as UTF-8.")]


def _candidates(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith(".")]
        for name in names:
            file = Path(folder, name)
            if file.suffix in _SUFFIXES and not name.startswith(".") and _belongs(file):
                yield file


def _belongs(file: Path) -> bool:
    if file.is_dir():
        return False
    return file.stem in _BASENAMES or _says_ours(file)


def _says_ours(file: Path) -> bool:
    try:
        return _OURS.search(_first_bytes(file, MAX_BYTES)) is not None
    except OSError:
        return False


def _first_bytes(file: Path, limit: int) -> bytes:
    # a pipe or a device would never end
    if not file.is_file():
        raise FileNotFoundError(2, "no such file" if not file.exists() else "this is no regular file")
    with file.open("rb") as stream:
        return stream.read(limit)
