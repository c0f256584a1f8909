"""A terminal that a command runs on."""

import os
import pty
import subprocess
import threading

from tests.waiting import wait_until

PATIENCE = 60


class Terminal:
    """A terminal that a command runs on, and what it has shown."""

    def __init__(self, command: tuple[str, ...], env: dict[str, str]) -> None:
        self._all = ""
        #: how much of it was waited for
        self._seen = 0
        self._side, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def shown(self) -> str:
        """What was shown after all that was waited for."""
        return self._all[self._seen :]

    def wait_for(self, text: str) -> str:
        """Wait until this is shown; return what was shown before it."""
        wait_until(lambda: text in self.shown, PATIENCE, show=lambda: self.shown)
        before, _, _ = self.shown.partition(text)
        self._seen += len(before) + len(text)
        return before

    def type(self, text: str) -> None:
        """Type on the keyboard."""
        os.write(self._side, text.encode())

    def close(self) -> None:
        """End the command and the reading."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._side)

    def _read(self) -> None:
        while True:
            try:
                self._all += os.read(self._side, 4096).decode(errors="replace")
            except OSError:  # nobody has the other side open any more
                return
