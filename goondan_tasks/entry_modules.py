"""The modules of entry files in ``sys.modules``, and when they are forgotten.

Python keeps a module for as long as the process lives. Each revision of a bundle has folders, and so modules,
of its own: those of a revision that nobody runs any more would add up.
"""

import linecache
import logging
import os
import sys
import threading
from collections import Counter
from pathlib import Path

#: how the names of these modules begin
PREFIX = "goondan_entry_"

_lock = threading.Lock()
#: how many hold the entries of a folder
_holders: Counter[Path] = Counter()


class EntryModules:
    """The modules of the entries in one folder: they stay until the last who holds them lets go.

    They are held before the first of them is loaded. Modules that were loaded by other ways than an entry's
    own imports (``from . import sibling``) belong to the process, and stay.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._is_held = True
        with _lock:
            _holders[self._folder] += 1

    def close(self) -> None:
        """Let go of them: no code of theirs runs here, and none will. A second time does nothing."""
        with _lock:
            if not self._is_held:
                return
            self._is_held = False
            _holders[self._folder] -= 1
            if _holders[self._folder] == 0:
                del _holders[self._folder]
                _forget(self._folder)


def _forget(folder: Path) -> None:
    """Take the modules of a folder out of wherever Python keeps something of them."""
    inside = f"{folder}{os.sep}"
    entries = {
        name
        for name, module in list(sys.modules.items())
        if name.startswith(PREFIX) and str(getattr(module, "__file__", None)).startswith(inside)
    }
    for names in (sys.modules, logging.Logger.manager.loggerDict):
        for name in list(names):
            if name.partition(".")[0] in entries:
                names.pop(name, None)
    for place in list(sys.path_importer_cache):
        if f"{place}{os.sep}".startswith(inside):
            sys.path_importer_cache.pop(place, None)
    linecache.clearcache()
