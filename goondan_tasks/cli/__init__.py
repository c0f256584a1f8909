"""The command line: ``goondan COMMAND``. :mod:`.program` lists the commands and their modules."""

import gc
import importlib
import sys
from typing import NoReturn

__all__ = ["main"]

#: as :data:`goondan_tasks.cli.output.INTERRUPTED`
_INTERRUPTED = 130


def main() -> NoReturn:
    """Run this process's command line; Ctrl-C while it is still being imported shows no traceback."""
    gc.disable()  # collections find nothing while modules are imported, and take a fifth of a command's time
    try:
        program = importlib.import_module("goondan_tasks.cli.program")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    sys.exit(program.main())
