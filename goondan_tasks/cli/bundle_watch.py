"""Notices changes of a bundle's files: its YAML and its Python."""

import threading
from pathlib import Path

from watchfiles import PythonFilter, watch


class BundleWatch:
    """Watches on a thread, until ``stop`` is set."""

    def __init__(self, bundle: Path, state_root: Path, stop: threading.Event) -> None:
        self._root = bundle if bundle.is_dir() else bundle.parent
        self._filter = files_that_matter(state_root)
        self._stop = stop
        self._changed = threading.Event()

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._watch, name="goondan-watch", daemon=True).start()

    def has_changed(self) -> bool:
        """Say whether something has changed since this was last asked."""
        has_changed = self._changed.is_set()
        self._changed.clear()
        return has_changed

    def _watch(self) -> None:
        for _ in watch(
            self._root,
            watch_filter=self._filter,
            stop_event=self._stop,
            rust_timeout=500,
            ignore_permission_denied=True,
        ):
            self._changed.set()


def files_that_matter(state_root: Path) -> PythonFilter:
    """Return what tells a bundle's YAML and Python from what tools write, caches and editors' own files."""
    return PythonFilter(ignore_paths=[state_root], extra_extensions=(".yaml", ".yml"))
