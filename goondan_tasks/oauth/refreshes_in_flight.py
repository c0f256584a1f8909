"""The refreshes of one process, which must not be cut off: an answer is the only copy of a refresh token."""

import contextlib
import threading
from collections.abc import Iterator

from goondan_tasks.oauth.oauth_errors import OAuthError

#: of a refresh: a provider that rotates has given up the old token by then, so hanging up loses the grant
REFRESH_SECONDS = 60.0
#: how long to try to store what the provider has answered
STORE_SECONDS = 60.0
#: what a refresh takes at most from the request until its reply is stored, with a margin for the last attempt
LONGEST_SECONDS = REFRESH_SECONDS + STORE_SECONDS + 10.0


class RefreshesInFlight:
    """Counts refreshes from the request until the reply is stored; safe in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._is_closed = False

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Count a refresh for as long as the ``with`` block runs.

        Raises:
            OAuthError: the process is about to end, so none may begin.
        """
        with self._lock:
            if self._is_closed:
                raise OAuthError("This process is stopping, and begins no refresh.")
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1

    def close(self) -> bool:
        """Let no more refreshes begin; return whether none is in flight any more."""
        with self._lock:
            self._is_closed = True
            return self._count == 0
