"""The digest of a bundle's content: the ref of a bundle that is in no git repository.

It is the SHA-256 over one line for each file, in order of paths: ``<mode> <path> NUL <SHA-256 of the
content> LF``, where the mode is git's (an ordinary file, a program, a link, whose content is where it
leads). So it is the same on every machine, whatever owners, times and other permissions are there.
"""

import hashlib
import os
from pathlib import Path

from goondan_tasks.errors import BundleRevisionUnavailableError
from goondan_tasks.revisions.bundle_ref import BundleRef
from goondan_tasks.revisions.folder import Folder, Found
from goondan_tasks.revisions.repository import FILE, LINK, PROGRAM

#: what programs leave beside a bundle, and no bundle needs
NO_CONTENT = frozenset(
    {
        ".DS_Store",
        ".changesets",
        ".git",
        ".goondan",
        ".hg",
        ".idea",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".svn",
        ".venv",
        ".vscode",
        "__pycache__",
        "node_modules",
    }
)
#: a bundle that is one file in a home directory shall not have all of it read
MAX_FILES = 20_000


def content_files(folder: Path) -> list[Found]:
    """Return the files and links that make up the content of a bundle's folder, in order of paths.

    Raises:
        BundleRevisionUnavailableError: there are too many, or they cannot be read.
    """
    files: list[Found] = []
    try:
        for found in Folder(folder).found(skipped=NO_CONTENT):
            files.append(found)
            if len(files) > MAX_FILES:
                message = f"The folder of the bundle, {folder}, has more than {MAX_FILES} files."
                raise BundleRevisionUnavailableError(message, suggestion="Give it a folder of its own.")
    except OSError as error:
        raise BundleRevisionUnavailableError(f"The bundle in {folder} cannot be read: {error}") from error
    return sorted(
        (found for found in files if found.kind != "other"), key=lambda found: os.fsencode(found.path)
    )


def content_ref(folder: Path) -> BundleRef:
    """Return the ref of a folder's content; raises as :func:`content_files` does."""
    source, digest = Folder(folder), hashlib.sha256()
    try:
        for found in content_files(folder):
            line = f"{_mode(found)} ".encode() + os.fsencode(found.path) + b"\0"
            digest.update(line + source.digest(found, "sha256").encode() + b"\n")
    except OSError as error:
        raise BundleRevisionUnavailableError(f"The bundle in {folder} cannot be read: {error}") from error
    return BundleRef("sha256", digest.hexdigest())


def _mode(found: Found) -> str:
    if found.kind == "link":
        return LINK
    return PROGRAM if found.is_executable else FILE
