"""``python -m goondan_tasks`` is ``goondan``."""

from goondan_tasks.cli.program import main

main()
