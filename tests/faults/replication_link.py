"""The way from a master to its replica: a relay of bytes that can be stopped, and its bytes be lost."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

READ_BYTES = 65_536
JOIN_SECONDS = 10.0


class ReplicationLink:
    """A context manager; replicas follow :attr:`port`, behind which is the server of ``lead_to``."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._master = 0
        self._flows = threading.Event()
        self._flows.set()
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, name="replication-link", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.lose()
        self._thread.join(JOIN_SECONDS)

    def lead_to(self, port: int) -> None:
        """Let connections that are opened from now on reach the master at a port."""
        self._master = port

    def stop(self) -> None:
        """Let nothing more reach the replica."""
        self._flows.clear()

    def lose(self) -> None:
        """Close all connections; what was stopped never arrives. New ones work."""
        with self._lock:
            opened, self._open = self._open, []
        for one in opened:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._flows.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                replica, _ = self._listener.accept()
                try:
                    master = socket.create_connection(("127.0.0.1", self._master))
                except OSError:
                    replica.close()
                    continue
                with self._lock:
                    self._open += [replica, master]
                for source, target in ((replica, master), (master, replica)):
                    threading.Thread(target=self._relay, args=(source, target), daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket) -> None:
        with source, suppress(OSError):
            while data := source.recv(READ_BYTES):
                self._flows.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
