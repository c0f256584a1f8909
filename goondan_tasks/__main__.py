"""``python -m goondan_tasks`` is ``goondan``."""

from goondan_tasks.cli import main

main()
