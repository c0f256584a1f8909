"""``goondan demo``: the example swarm at work, on a Redis and two workers of its own."""

import time
import uuid
from pathlib import Path
from typing import Annotated

import typer

from goondan_tasks.cli.demo_caller import DemoCaller
from goondan_tasks.cli.demo_screen import DemoScreen
from goondan_tasks.cli.demo_server import serve_files
from goondan_tasks.cli.demo_story import tell_story
from goondan_tasks.cli.exit_codes import INTERRUPTED
from goondan_tasks.cli.output import Output, Screen
from goondan_tasks.messages import JsonObject
from goondan_tasks.testing import LocalStack

WORKERS = 2
CONCURRENCY = 4

_HERE = Path(__file__).parent


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Show the example swarm at work: embedded Redis, two workers, real tool calls, then their trace."""
    screen = DemoScreen(Screen(stderr=as_json))
    try:
        report = _run(screen)
    except KeyboardInterrupt:
        screen.say("Stopped; everything has ended.")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        Output(as_json).document(report)


def example_bundle() -> Path:
    """Return where ``examples/coding-swarm`` is: inside the installed package, or in the source tree."""
    installed = _HERE.parent / "examples" / "coding-swarm"
    return installed if installed.is_dir() else _HERE.parents[1] / "examples" / "coding-swarm"


def _run(screen: DemoScreen) -> JsonObject:
    began = time.monotonic()
    bundle = example_bundle()
    environment = {"GOONDAN_SWARM": "coding", "GOONDAN_HTTP_ALLOW": "127.0.0.1"}
    screen.say(f"Starting a private Redis and {WORKERS} workers for the agents of {bundle} …")
    with (
        serve_files(bundle) as site,
        LocalStack(bundle, workers=WORKERS, concurrency=CONCURRENCY, environment=environment) as stack,
    ):
        started = time.monotonic()
        screen.started(stack.client.workers(), started - began)
        caller = DemoCaller(stack.client, screen, f"demo-{uuid.uuid4().hex[:8]}")
        tell_story(caller, screen, site)
        ended = time.monotonic()
    report = caller.report()
    report["seconds"] = {
        "start": round(started - began, 2),
        "calls": round(ended - started, 2),
        "stop": round(time.monotonic() - ended, 2),
    }
    screen.summary(caller.results, report)
    return report
