"""Which files of a directory belong to a bundle, and their text.

A file belongs to it if its basename is one of the specification's (``goondan.yaml``, ``tools.yaml``,
…), or if one of its documents has an ``apiVersion`` of ours: so a bundle may name its files as it likes,
and other programs' YAML beside it (a compose file, a workflow) is never checked.
"""

import codecs
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from goondan_tasks.bundle.documents import parse_documents
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
_OURS = re.compile(r"(goondan\.ai|agents\.example\.io)/")
#: how a text that cannot be parsed says the same; comments do not count
_OURS_IN_TEXT = re.compile(r"^[^#\r\n]*?api[-_]?version[^#]{0,40}?" + _OURS.pattern, re.M | re.I)
#: UTF-32's begins with UTF-16's
_OTHER_ENCODINGS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)


def bundle_files(path: Path) -> list[Path]:
    """Return the bundle's files: ``path`` itself, or those under it, ``goondan.yaml`` first."""
    if not path.is_dir():
        return [path]
    return sorted(_candidates(path), key=lambda file: (file.stem != "goondan", str(file)))


def is_document_name(path: str) -> bool:
    """Say whether a file, by its name, may declare resources."""
    return path.lower().endswith(_SUFFIXES)


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
    # without a byte order mark, every second byte of Latin text is NUL
    if data.startswith(_OTHER_ENCODINGS) or b"\0" in data[:2]:
        return "", [parse_fault(1, "the file is UTF-16 or UTF-32, not UTF-8", "Save it as UTF-8.")]
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
            if is_document_name(name) and not name.startswith(".") and _belongs(file):
                yield file


def _belongs(file: Path) -> bool:
    if file.is_dir():
        return False
    return file.stem in _BASENAMES or _says_ours(file)


def _says_ours(file: Path) -> bool:
    """Say whether the file declares a resource, or would if it could be read."""
    try:
        data = _first_bytes(file, MAX_BYTES)
    except OSError:
        return False
    # of UTF-16 and UTF-32, Latin text is left without the NULs
    text = data.decode("utf-8-sig", "replace").replace("\0", "")
    if _OURS.search(text) is None:
        return False
    documents, faults = parse_documents(text, str(file))
    if any(_declares(document.data) for document in documents):
        return True
    return bool(faults) and _OURS_IN_TEXT.search(text) is not None


def _declares(data: Any) -> bool:
    """Say whether a document, or an item of one that is a list, has an ``apiVersion`` of ours.

    A misspelt key counts: the check of the resource says what is wrong with it.
    """
    if isinstance(data, list):
        return any(_declares(item) for item in data if isinstance(item, dict))
    fields = data.items() if isinstance(data, dict) else ()
    return any(
        isinstance(value, str) and _OURS.match(value) and re.sub("[^a-z]", "", key.lower()) == "apiversion"
        for key, value in fields
    )


def _first_bytes(file: Path, limit: int) -> bytes:
    # a pipe or a device would never end
    if not file.is_file():
        raise FileNotFoundError(2, "no such file" if not file.exists() else "this is no regular file")
    with file.open("rb") as stream:
        return stream.read(limit)
