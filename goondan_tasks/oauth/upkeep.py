"""What has to be done about sessions while nobody asks: device codes are polled, resumptions made up for."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from broker_config.connections import UNREACHABLE
from goondan_tasks.oauth.device_poll import DevicePoll
from goondan_tasks.oauth.oauth_errors import OAuthStoreError
from goondan_tasks.oauth.resume import Resumption
from goondan_tasks.oauth.store import OAuthStore, UnreadableSession

_log = structlog.get_logger(__name__)

_TICK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Looks at every session now and then; several of them, anywhere, do not disturb one another."""

    store: OAuthStore
    device_poll: DevicePoll
    resumption: Resumption
    #: the sessions whose agents know
    _told: set[str] = field(default_factory=set)
    #: of those that cannot be read
    _noted: set[str] = field(default_factory=set)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Look in the background for the length of a ``with`` block."""
        stopped = threading.Event()
        thread = threading.Thread(target=self._run, args=(stopped,), name="oauth-upkeep", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def look(self) -> None:
        """Look at every session once."""
        sessions = tuple(self.store.sessions(self._note))
        self.device_poll.look(sessions)
        completed = {one.id: one for one in sessions if one.status == "completed"}
        self._told.intersection_update(completed)
        for session in completed.values():
            grant = None if session.id in self._told else self.store.grant(session.oauth_app, session.subject)
            # whoever completed it may have died before its agents were told
            if grant is not None and self.resumption.tell(session, grant):
                self._told.add(session.id)

    def _note(self, session: UnreadableSession) -> None:
        """Log a session that cannot be read, once; the others do not wait for it."""
        if session.id not in self._noted:
            self._noted.add(session.id)
            _log.warning("oauth.unreadable", error=session.error.message, what_to_do=session.error.suggestion)

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(_TICK_SECONDS):
            try:
                self.look()
            except (OAuthStoreError, *UNREACHABLE) as error:
                _log.warning("oauth.upkeep", error=str(error))
