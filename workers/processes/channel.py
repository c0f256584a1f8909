"""Messages between a worker and an isolated child: bytes with their length before them, over a socket."""

import socket
import struct
import threading
from math import inf
from time import monotonic

_LENGTH = struct.Struct(">Q")
_CHUNK_BYTES = 1_048_576
#: a socket refuses a timeout that does not fit into 32 bits of milliseconds
_LONGEST_WAIT_SECONDS = 3_600.0


class Channel:
    """One end of the socket. Any thread may send; one at a time receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, message: bytes, end: float = inf) -> None:
        """Send a message; give up at ``end``, in ``time.monotonic()``.

        Raises:
            TimeoutError: ``end`` has come.
            ConnectionError: the other end is closed.
        """
        with self._sending:
            self._wait_until(end)
            self._connection.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self, end: float = inf) -> bytes:
        """Wait for a message until ``end``, in ``time.monotonic()``.

        Raises:
            TimeoutError: ``end`` has come.
            ConnectionError: the other end is closed.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, end))
        return self._read(length, end)

    def is_open(self) -> bool:
        """Say whether the other end is open; one that has sent something unread counts as open."""
        self._connection.settimeout(0)
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except ConnectionError:
            return False

    def close(self) -> None:
        """Close this end."""
        self._connection.close()

    def _read(self, size: int, end: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._wait_until(end)
            try:
                chunk = self._connection.recv(min(size - len(data), _CHUNK_BYTES))
            except TimeoutError:
                continue
            if not chunk:
                raise ConnectionResetError
            data += chunk
        return bytes(data)

    def _wait_until(self, end: float) -> None:
        left = end - monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(None if end == inf else min(left, _LONGEST_WAIT_SECONDS))
