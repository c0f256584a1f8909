"""Parsers for command-line values, shell completion, and the options that commands share."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_config import serializer
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.wording import shown

if TYPE_CHECKING:
    from broker_config.settings import Settings


#: far above any payload limit; stops the reading of a file that never ends
MAX_BYTES = 64 * 1024 * 1024
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DEFAULT_INTERVAL = 2.0
_MOMENTS = "2026-12-01T09:00, local, or 2026-12-01T09:00+09:00"


def parse_seconds(given: str | float) -> float:
    """Read a number of seconds, 0 or more, or a time such as ``90s``, ``15m``, ``12h`` or ``7d``.

    Raises:
        typer.BadParameter: it is neither.
    """
    text = str(given)  # an option's default is a number
    factor = _UNITS.get(text[-1:])
    try:
        value = float(text if factor is None else text[:-1]) * (factor or 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise typer.BadParameter(
            f"{text!r} is neither a number of seconds (0 or more) nor a time such as 90s, 15m, 12h or 7d."
        )
    return value


def parse_positive_seconds(given: str | float) -> float:
    """Read a time as :func:`parse_seconds` does; 0 is refused."""
    if value := parse_seconds(given):
        return value
    raise typer.BadParameter("must be above 0.")


def parse_interval(given: str | float) -> float:
    """Read the seconds between two updates of ``--watch``; an empty text means the default."""
    seconds = parse_seconds(given) if given != "" else _DEFAULT_INTERVAL
    if not 0.1 <= seconds <= _UNITS["d"]:
        raise typer.BadParameter(f"must be from 0.1 to {_UNITS['d']} seconds (a day).")
    return seconds


def parse_moment(given: str | datetime) -> datetime:
    """Read an ISO 8601 time; without a zone it is local time, as times are shown.

    Raises:
        typer.BadParameter: it is none.
    """
    return _moment(given, f"{given!r} is no time such as {_MOMENTS}.")


def parse_end(given: str | datetime) -> datetime:
    """Read when something ends: a time from now such as ``90d``, or a time as :func:`parse_moment` does.

    Raises:
        typer.BadParameter: it is neither, or has passed.
    """
    now = datetime.now().astimezone()
    try:
        end = now + timedelta(seconds=parse_seconds(str(given)))
    except (typer.BadParameter, OverflowError):
        end = _moment(
            given,
            f"{str(given)!r} is neither a time from now, such as 12h or 90d, nor one such as {_MOMENTS}.",
        )
    if end <= now:
        raise typer.BadParameter(f"{str(given)!r} is not a time to come.")
    return end


def _moment(given: str | datetime, fault: str) -> datetime:
    try:
        return datetime.fromisoformat(str(given)).astimezone()
    except (ValueError, OverflowError, OSError) as error:
        raise typer.BadParameter(fault) from error


def moment_fields(delay: float | None, at: datetime | None) -> dict[str, Any]:
    """Return the fields of a call or an event that say when it may run.

    Raises:
        typer.BadParameter: there are both.
    """
    if delay is not None and at is not None:
        raise typer.BadParameter("give either --delay or --at.")
    given = {"delay": delay, "not_before": at}
    return {name: value for name, value in given.items() if value is not None}


def parse_json(text: str) -> Any:
    """Read JSON: as text, ``@file``, or ``-`` for stdin (DESIGN "Commands").

    Raises:
        typer.BadParameter: there is no such file, or its content is not JSON.
    """
    try:
        return serializer.decode(_content(text))
    except serializer.NotJsonError as error:
        raise typer.BadParameter(
            f'is not JSON ({error}). Write JSON text such as \'{{"path": "a.txt"}}\', @FILE, or - for stdin.'
        ) from error


def parse_object(text: str) -> JsonObject:
    """Read a JSON object; raises as :func:`parse_json` does."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise typer.BadParameter(f"must be a JSON object such as {{}}, not {shown(value)}.")
    return value


def parse_input(text: str) -> Any:
    """Read JSON, or else plain text as it is.

    Raises:
        typer.BadParameter: there is no such file, or it is not UTF-8.
    """
    content = _content(text)
    try:
        return serializer.decode(content)
    except serializer.NotJsonError:
        return content


def require_text(text: str | None) -> str | None:
    """Refuse an empty name, which an unset shell variable leaves."""
    if text == "":
        raise typer.BadParameter("is empty: write at least one character, or leave the option out.")
    return text


def this_bundle() -> Path:
    """Return the current directory if it has a ``goondan.yaml``; other YAML does not make it a bundle.

    Raises:
        ConfigError: it has none.
    """
    if any(Path(name).is_file() for name in ("goondan.yaml", "goondan.yml")):
        return Path()
    raise ConfigError(
        "No bundle is set, and there is no goondan.yaml here.",
        suggestion="Set GOONDAN_BUNDLE to the bundle's directory or file, or pass --bundle.",
    )


def _content(text: str) -> str:
    if text != "-" and not text.startswith("@"):
        return text
    name = "stdin" if text == "-" else f"the file {text[1:]!r}"
    if text == "-" and (sys.stdin is None or sys.stdin.closed):
        raise typer.BadParameter("- reads stdin, but stdin is closed.")
    try:
        with nullcontext(sys.stdin.buffer) if text == "-" else Path(text[1:]).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise typer.BadParameter(f"{name} is larger than {MAX_BYTES // 1024**2} MiB.")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{name} is not UTF-8 text.") from error
    except OSError as error:
        raise typer.BadParameter(f"{name} cannot be read: {error.strerror or error}.") from error


# A completion runs no code of the bundle and does not wait for Redis; what cannot be read is not suggested.
# Every command declares its completions, so they import what they need when they run.

#: how many calls are suggested
_CALLS = 30


def complete_agent(ctx: typer.Context) -> list[str]:
    return list(_tools_by_agent(ctx))


def complete_tool(ctx: typer.Context) -> list[str]:
    """Suggest the tools of the agent given before; without one, the tools of all agents."""
    tools, agent = _tools_by_agent(ctx), ctx.params.get("agent")
    if isinstance(agent, str):
        return list(tools.get(agent, ()))
    return list(dict.fromkeys(tool for some in tools.values() for tool in some))


def complete_call(ctx: typer.Context) -> list[tuple[str, str]]:
    """Suggest the ids of the most recent calls, each with its agent, tool and status."""
    from goondan_tasks.client import Client
    from goondan_tasks.contract.errors import GoondanError

    with (
        suppress(GoondanError, ValueError),
        Client(_settings(ctx).model_copy(update={"bundle": None})) as client,
    ):
        calls = client.calls(None, _CALLS)
        return [(one.id, f"{one.call.agent_name} {one.call.tool_name} {one.status}") for one in calls]
    return []


def _tools_by_agent(ctx: typer.Context) -> dict[str, Sequence[str]]:
    with suppress(ValueError):
        settings = _settings(ctx)
        # only workers know typed tools and the tools of extensions
        return {**dict(_declared(settings)), **dict(_announced(settings))}
    return {}


def _declared(settings: "Settings") -> Iterator[tuple[str, Sequence[str]]]:
    from goondan_tasks.bundle.bundle import inspect_resources
    from goondan_tasks.contract.errors import ConfigError

    with suppress(ConfigError, OSError):
        path = settings.bundle or this_bundle()
        bundle, _, scope = inspect_resources(path, import_entries=False, import_typed=False)
        for agent in scope.own.of_kind("Agent"):
            yield agent.name, tuple(bundle.bound_tools(agent.name)) if bundle else ()


def _announced(settings: "Settings") -> Iterator[tuple[str, Sequence[str]]]:
    from redis.exceptions import RedisError

    from broker_config.connections import connect
    from broker_config.keys import Keys
    from goondan_tasks.fleet.agent_registry import AgentRegistry

    with suppress(RedisError, ValueError), connect(settings.redis_url, name="goondan-completion") as redis:
        for record in AgentRegistry(redis, Keys(settings.namespace)).agents().values():
            yield record.name, [item["name"] for item in record.catalog]


def _settings(ctx: typer.Context) -> "Settings":
    """Return the settings with the options given before; raises SettingsError, a ValueError."""
    from broker_config.settings import Settings

    given = {name: ctx.params.get(name) for name in ("redis_url", "bundle", "swarm", "workspace")}
    return Settings.load(**given, connect_timeout_seconds=0)


def argument(metavar: str, help: str, **more: Any) -> Any:
    return typer.Argument(metavar=metavar, help=help, **more)


def option(metavar: str, help: str, *names: str, **more: Any) -> Any:
    """Declare an option with a value; without ``names`` it is named after its parameter."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def name_option(metavar: str, help: str, *names: str) -> Any:
    """Declare an option whose value must not be empty."""
    return option(metavar, help, *names, callback=require_text)


def seconds_option(help: str, *names: str, parser: Callable[[str], float] = parse_seconds) -> Any:
    return option("S", help, *names, parser=parser)


def flag(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help)


CallId = Annotated[
    str,
    argument(
        "ID",
        "The call's id from `goondan calls`, or at least its first 8 characters.",
        autocompletion=complete_call,
    ),
]
CallIds = Annotated[list[str], argument("IDS", "The ids of the calls.", autocompletion=complete_call)]
Ids = Annotated[
    list[str] | None,
    argument("IDS", "The ids of the calls; or else give a filter or --all.", autocompletion=complete_call),
]
OfAgent = Annotated[
    str | None, option("A", "Only those of agent A.", "--agent", autocompletion=complete_agent)
]
OfTool = Annotated[
    str | None,
    option(
        "GLOB", "Only those of matching tools, such as 'image__*'.", "--tool", autocompletion=complete_tool
    ),
]
OfInstance = Annotated[str | None, option("K", "Only those of instance K.", "--instance")]
OfCode = Annotated[str | None, name_option("CODE", "Only those that ended with error CODE.", "--code")]
OfText = Annotated[str | None, option("TEXT", "Only those with TEXT in the error's message.", "--text")]
OfSubject = Annotated[
    str | None, name_option("S", "Only those for the user or tenant S, of auth.subjects.", "--subject")
]
OfFingerprint = Annotated[
    str | None,
    name_option("F", "Only those of one kind, from dead-letters list --group.", "--fingerprint"),
]
OlderThan = Annotated[float | None, seconds_option("Only those at least S seconds old, or 10m, 2h.")]
NewerThan = Annotated[float | None, seconds_option("Only those at most S seconds old, or 10m, 2h.")]
All = Annotated[bool, flag("Take all of them.", "--all")]
DryRun = Annotated[bool, flag("Only show what would be done.", "--dry-run")]
ServedAgents = Annotated[
    list[str] | None,
    option("A", "An agent to serve; repeatable. Default: all.", "--agent", autocompletion=complete_agent),
]
Concurrency = Annotated[int, option("N", "Calls that a worker runs at once.", min=1, max=10_000)]
Install = Annotated[bool, flag("First install its spec.requirements with pip.", "--install")]
Verbose = Annotated[bool, flag("Log at level debug.", "--verbose", "-v")]
Yes = Annotated[bool, flag("Do not ask first.", "--yes")]
Timeout = Annotated[float | None, seconds_option("Wait at most S seconds; the call itself goes on.")]
Delay = Annotated[
    float | None, seconds_option("Run it in S seconds, or 10m, 2h, 7d; until then it is scheduled.")
]
At = Annotated[
    datetime | None,
    option(
        "TIME",
        "Run it at that time, such as 2026-12-01T09:00 (local) or 2026-12-01T09:00+09:00.",
        parser=parse_moment,
    ),
]
Keep = Annotated[
    float | None,
    seconds_option("Keep the Turn's events for S seconds after its end, for `goondan follow`."),
]
Watch = Annotated[
    float | None,
    option(
        "[SECONDS]",
        f"Repeat until Ctrl-C, every {_DEFAULT_INTERVAL:g} seconds or as often as given.",
        "--watch",
        parser=parse_interval,
    ),
]
Instance = Annotated[str | None, name_option("K", "The instance. Default: default.")]
Auth = Annotated[
    Any,
    option(
        "JSON",
        'The Turn\'s auth: a JSON object, @FILE, or -, such as \'{"subjects": {"user": "U1"}}\'.',
        parser=parse_object,
    ),
]
Origin = Annotated[Any, option("JSON", "The Turn's origin: a JSON object, @FILE, or -.", parser=parse_object)]
OutputSchema = Annotated[
    Any,
    option(
        "JSON",
        "The JSON Schema of the answer: JSON text, @FILE, or -. Agents that think keep to it.",
        "--schema",
        parser=parse_object,
    ),
]
BundleArgument = Annotated[
    Path | None, argument("BUNDLE", "A directory or file. Default: GOONDAN_BUNDLE, else this directory.")
]
Port = Annotated[
    int | None, option("P", "The port to listen on. Default: GOONDAN_HTTP_PORT.", min=0, max=65_535)
]
Address = Annotated[str | None, option("HOST", "The address to listen on. Default: GOONDAN_HTTP_HOST.")]
