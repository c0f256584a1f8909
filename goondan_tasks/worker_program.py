"""Celery's worker with our app, alone: ``python -P -m goondan_tasks.worker_program``.

Celery's command line has Flower and an interactive shell among its commands. To import them is a fifth of
what a worker's start takes, and 13 MiB in every worker.
"""

from celery.bin.base import CLIContext
from celery.bin.worker import worker

from goondan_tasks.celery import app
from goondan_tasks.celery_program import let_the_current_directory_hide_nothing


def main() -> None:
    """Run ``celery worker`` without its banner."""
    let_the_current_directory_hide_nothing()
    worker.main(prog_name="celery worker", obj=CLIContext(app, no_color=False, workdir=None, quiet=True))


if __name__ == "__main__":
    main()
