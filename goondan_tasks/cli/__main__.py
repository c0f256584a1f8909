"""``python -m goondan_tasks.cli`` is ``goondan``."""

from goondan_tasks.cli import main

main()
