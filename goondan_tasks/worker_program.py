"""Celery's worker with our app, alone: ``python -P -m goondan_tasks.worker_program``.

Celery's command line has Flower and an interactive shell among its commands. To import them is a fifth of
what a worker's start takes, and 13 MiB in every worker.
"""

import warnings

from celery.bin.base import CLIContext
from celery.bin.worker import worker

from broker_config.settings import Settings
from goondan_tasks.celery import app
from goondan_tasks.celery_program import let_the_current_directory_hide_nothing
from goondan_tasks.process_privacy import close_to_other_processes


def main() -> None:
    """Run ``celery worker`` without its banner."""
    let_the_current_directory_hide_nothing()
    if Settings.load().oauth_key is not None:
        close_to_other_processes()
    # six lines that recommend a --uid which goondan worker does not have; ours is worker.runs_as_root
    warnings.filterwarnings("ignore", message=r"\s*You're running the worker with superuser privileges")
    # nor is it news that a call goes on while Redis is away
    warnings.filterwarnings("ignore", message=r"\s*In Celery 5.1 we introduced an optional breaking change")
    worker.main(prog_name="celery worker", obj=CLIContext(app, no_color=False, workdir=None, quiet=True))


if __name__ == "__main__":
    main()
