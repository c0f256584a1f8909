"""The Celery app: ``celery -A goondan_tasks worker -Q agent.coder``.

Importing this module reads nothing. Environment and bundle are read when Celery first needs its
configuration.
"""

import gc
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from celery import Celery
from celery.__main__ import main as celery_main
from celery.utils.nodenames import host_format

from broker_config.broker_connection import Amqp, Control
from broker_config.options import celery_options
from broker_config.settings import Settings
from goondan_start import require_ours
from goondan_tasks.machine.process import close_to_other_processes
from goondan_tasks.revisions.bootstrap import bootstrap_bundle


def _configuration() -> dict[str, Any]:
    if "celery.bin.celery" in sys.modules:  # Celery's command line imports the workers; a producer has none
        require_ours("workers")
    settings = Settings.load()
    bundle = bootstrap_bundle(settings.bundle, settings) if settings.bundle else None
    agents = bundle.agent_names(settings.swarm) if bundle else ()
    return celery_options(settings, agents)


app = Celery("goondan", amqp=Amqp, control=Control)
app.add_defaults(_configuration)


def append_current_directory() -> None:
    """Append the current directory to the path.

    Celery puts it in front unless it is on the path (celery/utils/imports.py, ``cwd_in_path``), where a
    user's ``workers`` package would hide ours.
    """
    sys.path.append(str(Path.cwd()))


def main() -> None:
    """Run Celery's command line."""
    append_current_directory()
    celery_main()


def run_worker(name: str, queues: Sequence[str], *, concurrency: int, log_level: str) -> NoReturn:
    """Run a worker with the environment's settings until it is told to stop, then end the process.

    This is ``celery worker`` (celery/bin/worker.py) without Celery's command line: importing that, or
    starting a second interpreter for it, takes longer than the rest of the start. ``%h`` in ``name`` is the
    host.
    """
    gc.disable()  # collections during the imports would find nothing
    append_current_directory()
    if Settings.load().oauth_key is not None:
        close_to_other_processes()
    # recommends --uid, which goondan worker does not have; we log worker.runs_as_root instead
    warnings.filterwarnings("ignore", message=r"\s*You're running the worker with superuser privileges")
    worker = app.Worker(
        hostname=host_format(name),
        queues=list(queues),
        concurrency=concurrency,
        loglevel=log_level,
        without_gossip=True,
        without_mingle=True,
        quiet=True,
        no_color=False,
    )
    # recommends to cancel running calls at a connection loss; ours continue
    warnings.filterwarnings("ignore", message=r"\s*In Celery 5.1 we introduced an optional breaking change")
    gc.freeze()
    gc.enable()
    worker.start()
    sys.exit(worker.exitcode)
