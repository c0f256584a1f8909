"""Celery's command line, safe from the current directory: ``python -P -m goondan_tasks.celery_program``.

Celery imports with the current directory in front, unless that is on the path already
(celery/utils/imports.py, ``cwd_in_path``). A user's own ``workers`` package would then take the place of
ours; at the end of the path it takes the place of none.
"""

import sys
from pathlib import Path

from celery.__main__ import main as celery_main


def let_the_current_directory_hide_nothing() -> None:
    """Put it at the end of the path, before Celery puts it in front."""
    sys.path.append(str(Path.cwd()))


def main() -> None:
    """Run Celery's command line."""
    let_the_current_directory_hide_nothing()
    celery_main()


if __name__ == "__main__":
    main()
