"""A worker process of ``goondan dev``: it ends with dev, and its lines stand behind its name."""

import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Self

from broker_config.process_group import ProcessGroup
from goondan_tasks.cli.supervisor import Tell
from goondan_tasks.orchestrator.worker_process import LOG_BYTES, LOG_SECONDS, ending

_LONGEST_LINE = 65_536
_LINES = 40


class DevWorker:
    """One worker process; see :class:`goondan_tasks.orchestrator.members.Worker`."""

    def __init__(self, process: "subprocess.Popen[bytes]", name: str, tell: Tell) -> None:
        self.process = process
        self._name = name
        self._tell = tell
        self._log: deque[bytes] = deque(maxlen=_LINES)
        self._reader = threading.Thread(target=self._pass_on, daemon=True)
        self._reader.start()

    @classmethod
    def start(
        cls,
        group: ProcessGroup,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        tell: Tell,
    ) -> Self:
        """Start a worker.

        Raises:
            OSError: it cannot be started.
        """
        unbuffered = {**environment, "PYTHONUNBUFFERED": "1"}
        return cls(group.start(command, env=unbuffered, output=subprocess.PIPE), name, tell)

    def reason(self) -> str:
        """Say how it has ended, with the end of its log."""
        code = self.process.wait()
        self._reader.join(LOG_SECONDS)
        return ending(code, b"".join(list(self._log))[-LOG_BYTES:])

    def _pass_on(self) -> None:
        assert self.process.stdout is not None  # noqa: S101 - it was asked for
        with self.process.stdout as printed:
            while line := printed.readline(_LONGEST_LINE):
                self._log.append(line)
                self._tell(self._name, line.decode("utf-8", "replace").rstrip("\r\n"))
