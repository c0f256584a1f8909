"""The ``goondan`` program: finds the command, runs it, and exits as DESIGN "Commands" says.

A command's module is imported when the command runs, so that ``goondan --help`` stays quick.
"""

import gc
import importlib
import io
import json
import re
import sys
from collections import deque
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from goondan_tasks.contract.wording import closest

_PROGRAM = "goondan"
_PACKAGE = "goondan-workers"
_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
_QUOTED = re.compile("'([^']*)'")
#: the usage error for unexpected arguments, which may be names of agents or doors
_EXTRA = re.compile(r"Got unexpected extra argument\(s\) \(([a-z0-9-]+(?: [a-z0-9-]+)*)\)")


class CommandPlace(NamedTuple):
    """A command's function as ``module:function``, and its line in the help."""

    function: str
    summary: str


#: the commands by section of the help; a subcommand is listed with its group's name
SECTIONS = {
    "Get started": {
        "demo": CommandPlace("demo:demo", "See the example swarm at work on a private Redis."),
        "init": CommandPlace("bundles:init", "Write a small bundle to start from, with a test."),
        "dev": CommandPlace("dev:dev", "Run Redis, workers and Flower; reload on change."),
        "explain": CommandPlace("explain:explain", "Explain an error code."),
    },
    "Run workers": {
        "worker": CommandPlace("servers:worker", "Run a worker for one or more agents."),
        "orchestrator": CommandPlace("servers:orchestrator", "Start and stop workers as agents need them."),
        "pause": CommandPlace("agents:pause", "Pause an agent or a tool: their calls wait."),
        "resume": CommandPlace("agents:resume", "Resume a paused agent or tool."),
        "shutdown": CommandPlace(
            "agents:shutdown", "Ask an agent's workers, or one worker, to drain and exit."
        ),
    },
    "Call tools and agents": {
        "chat": CommandPlace("chat:chat", "Talk to an agent in the terminal."),
        "call": CommandPlace("calls:call", "Call an agent's tool and print the result."),
        "request": CommandPlace("calls:request", "Ask an agent and print its answer."),
        "send": CommandPlace("calls:send", "Send an agent an event that it does not answer."),
        "run-now": CommandPlace("calls:run_now", "Run scheduled calls at once."),
        "cancel": CommandPlace("selection:cancel", "Cancel calls, by their ids or by a filter."),
        "resolve": CommandPlace("calls:resolve", "Complete a pending call with an output or an error."),
        "approvals list": CommandPlace(
            "approvals:list_approvals", "List the calls that wait for an approval."
        ),
        "approvals approve": CommandPlace("approvals:approve", "Approve calls: they run."),
        "approvals deny": CommandPlace("approvals:deny", "Deny calls: they end with E_APPROVAL_DENIED."),
        "schedules list": CommandPlace("schedules:list_schedules", "List the schedules (the default)."),
        "schedules add": CommandPlace("schedules:add", "Add a schedule for an agent or a tool."),
        "schedules pause": CommandPlace("schedules:pause", "Pause a schedule."),
        "schedules resume": CommandPlace("schedules:resume", "Resume a schedule with its next slot."),
        "schedules run": CommandPlace("schedules:run", "Fire a schedule now."),
        "schedules remove": CommandPlace("schedules:remove", "Remove a schedule that was added."),
        "callbacks serve": CommandPlace("doors:callbacks", "Serve the URLs of ctx.callback_url."),
    },
    "Inspect calls": {
        "follow": CommandPlace("follow:follow", "Follow a Turn or call: show its events as they come."),
        "result": CommandPlace("calls:result", "Print a call's result, or its current state."),
        "output": CommandPlace("calls:output", "Write a call's full output, however large."),
        "calls": CommandPlace("trace:calls", "List the most recent calls."),
        "show": CommandPlace("trace:show", "Show everything that is known about one call."),
        "trace": CommandPlace("trace:trace", "Draw the tree of related calls and handoffs."),
        "traces": CommandPlace("trace:traces", "List the traces of the most recent calls."),
        "dead-letters list": CommandPlace("dead_letters:list_letters", "List the dead letters."),
        "dead-letters show": CommandPlace(
            "dead_letters:show_letter", "Show a dead letter with its arguments and its result."
        ),
        "dead-letters replay": CommandPlace(
            "dead_letters:replay", "Submit dead letters again, as new calls."
        ),
        "dead-letters drop": CommandPlace("dead_letters:drop", "Drop dead letters; their results stay."),
    },
    "Inspect the swarm": {
        "agents": CommandPlace("agents:agents", "List the agents that can be called."),
        "catalog": CommandPlace("agents:catalog", "Print the tools that an agent may call."),
        "queues": CommandPlace("agents:queues", "Show the state of every agent's queue."),
        "instances list": CommandPlace("agents:list_instances", "List the instances (the default)."),
        "instances show": CommandPlace("agents:show_instance", "Show an instance, or its conversations."),
        "instances delete": CommandPlace("agents:delete_instance", "Delete an instance and its files."),
        "usage": CommandPlace("usage:usage", "Show calls and tokens by day, agent, model or user."),
        "handoffs": CommandPlace("usage:handoffs", "Show how often agents pass work to each other."),
        "gc": CommandPlace("agents:gc", "Remove instances that have long been unused."),
        "audit": CommandPlace("audit:audit", "List who did what, when, and by which door."),
        "doctor": CommandPlace("doctor:doctor", "Check Redis, workers and bundle; say what to fix."),
        "metrics": CommandPlace("doors:metrics", "Serve metrics of all queues to Prometheus."),
        "flower": CommandPlace("servers:flower", "Run Flower, the web monitor, set up for agents."),
    },
    "Change a bundle": {
        "validate": CommandPlace("bundles:validate", "Check a bundle and print all findings."),
        "schema": CommandPlace("bundles:schema", "Print the JSON Schema of a bundle's YAML."),
        "migrate": CommandPlace("bundles:migrate", "Rewrite a bundle for the current format."),
        "changeset open": CommandPlace("changesets:open_", "Open a changeset, and print its directory."),
        "changeset diff": CommandPlace("changesets:diff", "Print a changeset as a diff."),
        "changeset commit": CommandPlace(
            "changesets:commit", "Commit a changeset, and propose the revision."
        ),
        "changeset discard": CommandPlace("changesets:discard", "Discard a changeset and its files."),
        "changeset list": CommandPlace("changesets:list_open", "List the open changesets."),
        "changeset log": CommandPlace("changesets:log", "List the commits of the bundle."),
        "changeset active": CommandPlace("changesets:active", "Show which revision the workers run."),
        "changeset activate": CommandPlace("changesets:activate", "Propose a revision to the workers."),
        "rollback": CommandPlace("changesets:rollback", "Restore an earlier revision of the bundle."),
    },
    "Connect": {
        "serve": CommandPlace("doors:serve", "Serve HTTP: the API, a console, front ends, metrics, MCP."),
        "console": CommandPlace("doors:console", "Serve pages for browsers: what the swarm does."),
        "connectors run": CommandPlace("connectors:run", "Run Connections: events from outside come in."),
        "connectors list": CommandPlace("connectors:list_connections", "List the Connections (the default)."),
        "connectors test": CommandPlace("connectors:test", "Show where an event would go; send nothing."),
        "connectors show": CommandPlace(
            "built_in_connectors:show", "Show the built-in connectors, or the code of one."
        ),
        "connectors copy": CommandPlace(
            "built_in_connectors:copy", "Copy a built-in connector into the bundle."
        ),
        "tokens add": CommandPlace("tokens:add", "Add a token for HTTP; it is printed once."),
        "tokens list": CommandPlace("tokens:list_tokens", "List the tokens for HTTP (the default)."),
        "tokens revoke": CommandPlace("tokens:revoke", "Revoke a token for HTTP."),
        "mcp-server": CommandPlace("doors:mcp_server", "Serve an agent's tools to MCP clients."),
        "oauth apps": CommandPlace("oauth:apps", "List the OAuthApps of the bundle."),
        "oauth grants": CommandPlace("oauth:grants", "List the consents that users have given."),
        "oauth sessions": CommandPlace("oauth:sessions", "List pending and recent consent requests."),
        "oauth login": CommandPlace("oauth:login", "Ask a user for consent, in a browser."),
        "oauth serve": CommandPlace("doors:oauth", "Serve the callbacks of all OAuthApps."),
        "oauth revoke": CommandPlace("oauth:revoke", "Revoke a grant, or remove a record."),
        "oauth rotate-key": CommandPlace("oauth:rotate_key", "Encrypt the store with a new key."),
    },
}
COMMANDS = {name: place for commands in SECTIONS.values() for name, place in commands.items()}

GROUPS = {
    "approvals": "List, approve or deny calls that wait for an approval.",
    "connectors": "Run Connections, or show how they fare.",
    "callbacks": "Complete pending calls over HTTP.",
    "dead-letters": "List, show, replay or drop calls that killed their workers.",
    "instances": "List, show or delete the instances of agents.",
    "schedules": "List, add, pause, resume, run or remove schedules.",
    "oauth": "Manage tokens for tools: grants, consents, callbacks, keys.",
    "tokens": "List, add or revoke the tokens of those who use `goondan serve`.",
    "changeset": "Change a bundle while workers run it.",
}

#: the subcommand that a group runs if none is given
_DEFAULTS = {"connectors": "list", "instances": "list", "schedules": "list", "tokens": "list"}
#: options without a value, which may precede a subcommand
_HELP = {"-h", "--help"}
_FLAGS = {
    "--json",
    "--yes",
    "--all",
    "--dry-run",
    "--mailbox",
    "--messages",
    "--again",
    "--wait",
    "--no-wait",
    "--no-browser",
    *_HELP,
}


class LazyGroup(TyperGroup):
    """Imports a command's module when the command is run or completed; ``--help`` imports none."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of commands and groups in the order of the table."""
        names = dict.fromkeys(path.partition(" ")[0] for path in COMMANDS)
        return list(names) if ctx.parent is None else super().list_commands(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands to the help; those of the program in sections."""
        if ctx.parent is not None:
            return super().format_commands(ctx, formatter)
        width = max(map(len, self.commands))
        for title, commands in SECTIONS.items():
            names = dict.fromkeys(path.partition(" ")[0] for path in commands)
            with formatter.section(title):
                helps = (self.commands[name].get_short_help_str(formatter.width - width) for name in names)
                formatter.write_dl(
                    [(name.ljust(width), help) for name, help in zip(names, helps, strict=True)]
                )
        return None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; a subcommand's options may precede it."""
        return super().parse_args(ctx, args if ctx.parent is None else self._command_first(args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; suggest one for a misspelt name."""
        if ctx.parent is not None and not ctx.resilient_parsing and args[0] not in self.commands:
            ctx.fail(f"COMMAND {_not_one_of(args[0], list(self.commands))}")
        name, command, rest = super().resolve_command(ctx, args)
        path = name if ctx.parent is None else f"{self.name} {name}"
        return name, load_command(path) if path in COMMANDS else command, rest

    def _command_first(self, args: list[str]) -> list[str]:
        place = 0
        while place < len(args) and args[place].startswith("-"):
            place += 1 if "=" in args[place] or args[place] in _FLAGS else 2
        if place < len(args):
            return [args[place], *args[:place], *args[place + 1 :]]
        default = _DEFAULTS.get(self.name or "")
        return args if default is None or not _HELP.isdisjoint(args) else [default, *args]


class WordedCommand(TyperCommand):
    """A command whose usage errors say what a value must be, and suggest the closest word."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Read the command line.

        Raises:
            typer.BadParameter: a value does not fit its argument or option.
        """
        try:
            return super().make_context(*args, **kwargs)
        except typer.BadParameter as error:
            faults = getattr(error.__cause__, "errors", None)
            if faults is not None:  # the cause is pydantic's, which --help does not import
                fault_text = _imported("broker_config.value_faults:fault_text")
                error.message = "; ".join(_words(fault_text(fault, shows_value=True)) for fault in faults())
            raise

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; an agent or a door among them gets a hint at its option."""
        try:
            return super().parse_args(ctx, with_values(args, self.params))
        except typer.TyperException as error:
            extra = _EXTRA.fullmatch(error.message)
            words = [] if extra is None else extra[1].split()
            names = {name for parameter in self.params for name in parameter.opts}
            option = "--door" if "--door" in names and _are_doors(words) else "--agent"
            if words and option in names:
                named = " ".join(f"{option} {word}" for word in words)
                error.message += f". {option[2:].title()}s are named by an option: {ctx.command_path} {named}"
            raise


def _are_doors(words: Sequence[str]) -> bool:
    from goondan_tasks.cli.doors import DOORS

    return all(word in DOORS for word in words)


def with_values(words: Sequence[str], parameters: Sequence[Any]) -> list[str]:
    """Return the words of a command line, with each optional value joined to its option: ``--watch=5``.

    Typer has no options with optional values; ours have a metavar in brackets. If the command has arguments,
    the word after such an option is one of them, and a value needs the ``=``.
    """
    options = (one for one in parameters if one.param_type_name == "option")
    names = {name for one in options if (one.metavar or "").startswith("[") for name in one.opts}
    has_arguments = any(one.param_type_name == "argument" for one in parameters)
    end = words.index("--") if "--" in words else len(words)
    rest, joined = deque(words[:end]), []
    while rest:
        word = rest.popleft()
        if word in names:
            following = rest[0] if rest and not has_arguments else "-"
            is_value = not following.startswith("-") or following[1:2].isdigit()
            word += "=" + (rest.popleft() if is_value else "")
        joined.append(word)
    return [*joined, *words[end:]]


def load_command(name: str) -> Any:
    """Import a command, and make it report its failures."""
    # imported by name too: its module knows the errors of settings and Redis, which --help does without
    reported = _imported("goondan_tasks.cli.output:reported")
    single = typer.Typer(rich_markup_mode=None, add_completion=False)
    single.command(name.rpartition(" ")[2], cls=WordedCommand, context_settings=_SETTINGS)(
        reported(_imported(f"goondan_tasks.cli.{COMMANDS[name].function}"))
    )
    command = typer.main.get_command(single)
    gc.freeze()
    gc.enable()
    return command


def make_app() -> typer.Typer:
    """Make the application with the names and summaries of all commands; none is imported."""
    app = _make_group(callback=_goondan)
    groups: dict[str, typer.Typer] = {}
    for path, place in COMMANDS.items():
        group, _, name = path.rpartition(" ")
        if group and group not in groups:
            groups[group] = _make_group()
            app.add_typer(groups[group], name=group, help=GROUPS[group])
        (groups[group] if group else app).command(name, help=place.summary)(_not_imported)
    return app


def main() -> NoReturn:
    """Run this process's command line, and end the process."""
    # a closed stream is replaced; what cannot be encoded is written as an escape
    sys.stdout, sys.stderr = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    as_json = "--json" in sys.argv[1:]
    command = typer.main.get_command(make_app())
    try:
        sys.exit(command.main(prog_name=_PROGRAM, standalone_mode=not as_json))
    except typer.TyperException as error:  # a usage error; without --json typer prints it
        described = {"code": "E_USAGE", "message": " ".join(error.format_message().split())}
        sys.stdout.write(json.dumps({"error": described}, indent=2) + "\n")
        sys.exit(error.exit_code)


def _make_group(**options: Any) -> typer.Typer:
    # plain help: rich's takes twice the time
    return typer.Typer(
        rich_markup_mode=None, cls=LazyGroup, no_args_is_help=True, context_settings=_SETTINGS, **options
    )


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        version = _imported("importlib.metadata:version")
        typer.echo(f"{_PROGRAM} {version(_PACKAGE)}")
        raise typer.Exit


def _goondan(
    _: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit."),
    ] = False,
) -> None:
    """Run the tool calls of LLM agents on workers, over a message queue."""


def _not_imported() -> None:
    """Stand in for a command whose module is imported when it runs."""


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _words(text: str) -> str:
    """Write typer's own "is not one of" in our wording."""
    if " is not one of " not in text:
        return f"{text}."
    given, *choices = _QUOTED.findall(text)
    return _not_one_of(given, choices)


def _not_one_of(given: str, choices: Sequence[str]) -> str:
    meant = closest(given, choices)
    guess = "" if meant is None else f" Did you mean {meant}?"
    return f"must be one of {', '.join(choices)}; {given!r} is not.{guess}"
