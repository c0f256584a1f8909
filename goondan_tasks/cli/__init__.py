"""The command line: ``goondan COMMAND``. One module a command; :mod:`.commands` lists them."""

from goondan_tasks.cli.program import main

__all__ = ["main"]
