"""The package whose modules are the entry files of bundles, so that other processes can import them.

``multiprocessing``, for example, pickles a function by the name of its module. A new process imports this
package first, and then finds the file by the rest of the name: see
:func:`goondan_tasks.authoring.entry.import_entry`.
"""

import sys

from goondan_tasks.authoring.entry import EntryFinder

#: makes this module a package without files of its own
__path__: list[str] = []

sys.meta_path.append(EntryFinder())
