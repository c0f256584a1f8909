"""``goondan demo``: the example swarm at work, on a Redis and workers of its own, one for each agent."""

import time
from pathlib import Path
from typing import Annotated

import typer

from goondan_tasks.cli.demo_screen import DemoScreen
from goondan_tasks.cli.demo_story import Story
from goondan_tasks.cli.exit_codes import INTERRUPTED
from goondan_tasks.cli.output import Output, Screen
from goondan_tasks.messages import JsonObject
from goondan_tasks.testing import LocalStack

CONCURRENCY = 4

_HERE = Path(__file__).parent


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Show the example swarm at work: embedded Redis, a worker for each agent, handoffs, their trace."""
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
    screen.say(f"Starting a private Redis, and a worker for each agent of\n{bundle} …")
    environment = {"GOONDAN_SWARM": "coding"}
    with LocalStack(bundle, concurrency=CONCURRENCY, environment=environment, apart=True) as stack:
        started = time.monotonic()
        screen.started(stack.client.workers(), started - began)
        story = Story(stack.client, screen)
        story.tell()
        ended = time.monotonic()
    report = story.report()
    report["seconds"] = {
        "start": round(started - began, 2),
        "work": round(ended - started, 2),
        "stop": round(time.monotonic() - ended, 2),
    }
    screen.summary(report)
    return report
