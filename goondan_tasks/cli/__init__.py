"""The command line: ``goondan COMMAND``. :mod:`.program` lists the commands and their modules."""

import gc
import importlib
import json
import sys
from typing import NoReturn

from goondan_tasks.errors import ConfigError, extra

__all__ = ["main"]

#: as :data:`goondan_tasks.cli.output.CONFIGURATION`
_CONFIGURATION = 3
#: as :data:`goondan_tasks.cli.output.INTERRUPTED`
_INTERRUPTED = 130


def main() -> NoReturn:
    """Run this process's command line; Ctrl-C while it is still being imported shows no traceback."""
    gc.disable()  # collections find nothing while modules are imported, and take a fifth of a command's time
    try:
        with extra("worker" if sys.argv[1:2] == ["worker"] else "cli"):
            program = importlib.import_module("goondan_tasks.cli.program")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except ConfigError as error:  # without the extra there is nothing that could write it as other errors
        if "--json" in sys.argv[1:]:
            described = {"code": error.code, "message": error.message, "suggestion": error.suggestion}
            sys.stdout.write(json.dumps({"error": described}, indent=2) + "\n")
        else:
            sys.stderr.write(f"Error: {error.message} ({error.code})\nWhat to do: {error.suggestion}\n")
        sys.exit(_CONFIGURATION)
    sys.exit(program.main())
