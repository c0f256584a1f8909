"""``python -m goondan_tasks`` is ``goondan``."""

from goondan_start import main

main()
