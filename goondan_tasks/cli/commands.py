"""Every command, and where its function stands. Nothing is imported before a command is asked for."""

from typing import NamedTuple


class CommandPlace(NamedTuple):
    """A command's function as ``module:function``, and its line in ``goondan --help``."""

    function: str
    summary: str


COMMANDS = {
    "demo": CommandPlace("goondan_tasks.cli.demo:demo", "See the example swarm at work on a private Redis."),
    "worker": CommandPlace("goondan_tasks.cli.worker:worker", "Run a worker for one or more agents."),
    "call": CommandPlace("goondan_tasks.cli.call:call", "Call an agent's tool and print the result."),
    "validate": CommandPlace("goondan_tasks.cli.validate:validate", "Check a bundle: every finding at once."),
}
