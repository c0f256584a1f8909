"""The doors: each module has ``opened(context)``, which yields a :class:`~goondan_web.door.Door`."""
