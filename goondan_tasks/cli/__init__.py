"""The command line: ``goondan COMMAND``. :mod:`.program` lists the commands and their modules."""

import gc
import importlib
import json
import sys
from typing import NoReturn

from goondan_tasks.contract.errors import ConfigError, extra

__all__ = ["main"]

# the same as in goondan_tasks.cli.output, which is not imported yet
_CONFIGURATION, _INTERRUPTED = 3, 130


def main() -> NoReturn:
    """Run this process's command line; Ctrl-C during the imports shows no traceback."""
    gc.disable()  # during imports the collector finds nothing and takes a fifth of a command's time
    try:
        with extra("worker" if sys.argv[1:2] == ["worker"] else "cli"):
            program = importlib.import_module("goondan_tasks.cli.program")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except ConfigError as error:  # what writes the other errors needs the extra too
        if "--json" in sys.argv[1:]:
            described = {"code": error.code, "message": error.message, "suggestion": error.suggestion}
            sys.stdout.write(json.dumps({"error": described}, indent=2) + "\n")
        else:
            sys.stderr.write(f"Error: {error.message} ({error.code})\nWhat to do: {error.suggestion}\n")
        sys.exit(_CONFIGURATION)
    sys.exit(program.main())
