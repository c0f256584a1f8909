"""The scripted Telegram of the example, for tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from goondan_tasks.authoring.entry import import_entry

EXAMPLE = Path(__file__).parents[1] / "examples" / "telegram-echo"
_program: Any = import_entry(EXAMPLE / "scripted_telegram.py")
TOKEN: str = _program.TOKEN


@contextmanager
def scripted_telegram() -> Iterator[Any]:
    """Run a ``ScriptedTelegram`` on a loopback port."""
    server = _program.ScriptedTelegram()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
