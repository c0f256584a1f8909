"""Several files that change in one step: what is to be done is written down before it is done."""

import json
from collections.abc import Mapping
from pathlib import Path

from goondan_tasks.oauth.oauth_errors import OAuthStoreError
from goondan_tasks.oauth.private_files import sync_directory, write_private

_NAME = "journal"


def write_together(root: Path, files: Mapping[str, str]) -> None:
    """Write files, named from ``root``; who dies on the way has it done by :func:`finish`."""
    if len(files) > 1:
        write_private(root / _NAME, json.dumps(files).encode())
    _write(root, files)


def finish(root: Path) -> None:
    """Do what somebody has begun and not ended.

    Raises:
        OAuthStoreError: it cannot be read.
    """
    try:
        files = json.loads((root / _NAME).read_bytes())
    except FileNotFoundError:
        return
    except ValueError:
        raise OAuthStoreError(
            f"{root / _NAME} is damaged.", suggestion="Remove it: the consent that it was about is lost."
        ) from None
    _write(root, files)


def _write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        write_private(root / name, text.encode())
    if (root / _NAME).exists():
        (root / _NAME).unlink()
        sync_directory(root)
