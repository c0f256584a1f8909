"""The command line: ``goondan COMMAND``. One module a command; :mod:`.commands` lists them."""

import importlib
import sys
from typing import NoReturn

__all__ = ["main"]

#: as :data:`goondan_tasks.cli.exit_codes.INTERRUPTED`
_INTERRUPTED = 130


def main() -> NoReturn:
    """Run this process's command line; Ctrl-C is no traceback while it is still being imported."""
    try:
        program = importlib.import_module("goondan_tasks.cli.program")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    sys.exit(program.main())
