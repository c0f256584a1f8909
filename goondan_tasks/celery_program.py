"""Celery's command line and Celery's worker, both safe from the current directory.

Celery imports with the current directory in front, unless that is on the path already
(celery/utils/imports.py, ``cwd_in_path``). A user's own ``workers`` package would then take the place of
ours; at the end of the path it takes the place of none.
"""

import gc
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from celery.__main__ import main as celery_main
from celery.utils.nodenames import host_format

from broker_config.settings import Settings
from goondan_tasks.celery import app
from goondan_tasks.process import close_to_other_processes


def append_current_directory() -> None:
    """Put the current directory at the end of the path, before Celery puts it in front."""
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
    # running calls continue during an outage of Redis, as they should
    warnings.filterwarnings("ignore", message=r"\s*In Celery 5.1 we introduced an optional breaking change")
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
    gc.freeze()
    gc.enable()
    worker.start()
    sys.exit(worker.exitcode)
