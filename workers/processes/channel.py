"""The socket between a worker and the process of an isolated tool."""

import socket
import struct
import threading
from math import inf
from time import monotonic

from goondan_tasks.contract.errors import ToolCrashedError

_LENGTH = struct.Struct(">Q")
_CHUNK_BYTES = 1_048_576
#: the milliseconds of a socket's timeout must fit into 32 bits
_LONGEST_WAIT_SECONDS = 3_600.0


class ChildChannel:
    """One end of the socket between worker and child; each message is preceded by its length.

    Any thread may send; one thread at a time may receive.
    """

    def __init__(self, connection: socket.socket, max_message_bytes: float = inf) -> None:
        self._connection = connection
        self._max_message_bytes = max_message_bytes
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
            ToolCrashedError: the message is larger than ``max_message_bytes``.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, end))
        if length > self._max_message_bytes:
            raise ToolCrashedError(
                f"The tool's process sends a message of {length} bytes; "
                f"at most {self._max_message_bytes} are allowed."
            )
        return self._read(length, end)

    def is_open(self) -> bool:
        """Return whether the other end is open, or data is left to read."""
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
