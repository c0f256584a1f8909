"""The Celery app: ``celery -A goondan_tasks worker -Q agent.coder``.

Importing this module reads nothing: the environment and the bundle are looked at when Celery first
asks for its configuration.
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

from broker_config.broker_connection import Amqp
from broker_config.options import celery_options
from broker_config.settings import Settings
from goondan_start import require_ours
from goondan_tasks.process import close_to_other_processes
from goondan_tasks.revisions.bootstrap import bootstrap_bundle


def _configuration() -> dict[str, Any]:
    if "celery.bin.celery" in sys.modules:  # its command line imports the workers; producers have none
        require_ours("workers")
    settings = Settings.load()
    bundle = bootstrap_bundle(settings.bundle, settings) if settings.bundle else None
    agents = bundle.agent_names(settings.swarm) if bundle else ()
    return celery_options(settings, agents)


app = Celery("goondan", amqp=Amqp)
app.add_defaults(_configuration)


def append_current_directory() -> None:
    """Put the current directory at the end of the path, before Celery puts it in front.

    Celery does so unless it is on the path already (celery/utils/imports.py, ``cwd_in_path``). In front, a
    user's own ``workers`` package would take the place of ours.
    """
    sys.path.append(str(Path.cwd()))


def main() -> None:
    """Run Celery's command line."""
    append_current_directory()
    celery_main()


def run_worker(name: str, queues: Sequence[str], *, concurrency: int, log_level: str) -> NoReturn:
    """Run a worker until it is told to stop, then end the process.

    Its settings are those of the environment. This is what ``celery worker`` does (celery/bin/worker.py),
    without Celery's command line: to import that, or to start a second interpreter for it, takes longer than
    all the rest. ``%h`` in ``name`` is the host.
    """
    gc.disable()  # until all is imported: collections would find nothing
    append_current_directory()
    if Settings.load().oauth_key is not None:
        close_to_other_processes()
    # six lines that recommend --uid, which goondan worker does not have; we log worker.runs_as_root instead
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
    # running calls continue during an outage, as they should; the worker's logging shows such warnings
    warnings.filterwarnings("ignore", message=r"\s*In Celery 5.1 we introduced an optional breaking change")
    gc.freeze()
    gc.enable()
    worker.start()
    sys.exit(worker.exitcode)
