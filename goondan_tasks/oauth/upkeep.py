"""What has to be done about sessions while nobody asks: device codes are polled, resumptions made up for."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog
from redis.exceptions import RedisError

from broker_config.vital_thread import vital_thread
from goondan_tasks.errors import GoondanError
from goondan_tasks.oauth.device_poll import DevicePoll
from goondan_tasks.oauth.oauth_errors import OAuthStoreError
from goondan_tasks.oauth.pace import Pace
from goondan_tasks.oauth.records import AuthSession
from goondan_tasks.oauth.resume import Resumption
from goondan_tasks.oauth.store import OAuthStore, UnreadableRecord

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
    #: when those are tried again whose agents could not be told
    _paces: dict[str, Pace] = field(default_factory=dict)
    #: of those that cannot be read
    _noted: set[str] = field(default_factory=set)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Look in the background for the length of a ``with`` block."""
        stopped = threading.Event()
        thread = vital_thread("oauth-upkeep", lambda: self._run(stopped), is_over=stopped.is_set)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def look(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Look at every session once, until ``is_over()``: a provider that does not answer takes its time."""
        sessions = tuple(self.store.sessions(self._note))
        self.device_poll.look(sessions, is_over)
        completed = {one.id: one for one in sessions if one.status == "completed"}
        self._told.intersection_update(completed)
        for gone in self._paces.keys() - completed.keys():
            del self._paces[gone]
        for session in completed.values():
            # whoever completed it may have died before its agents were told
            if session.id not in self._told:
                self._catch_up(session)

    def _catch_up(self, session: AuthSession) -> None:
        """Tell the agents of a session; those of one that cannot be told hold up no others."""
        pace = self._paces.get(session.id)
        if pace is not None and not pace.is_due:
            return
        if self._is_told(session):
            self._told.add(session.id)
        elif pace is None:
            self._paces[session.id] = Pace(_TICK_SECONDS)
        else:
            pace.slow_down()
            pace.wait()

    def _is_told(self, session: AuthSession) -> bool:
        try:
            grant = self.store.grant(session.oauth_app, session.subject)
        except OAuthStoreError as error:
            self._note(UnreadableRecord(session.id, error))
            return False
        return grant is not None and self.resumption.tell(session, grant)

    def _note(self, record: UnreadableRecord) -> None:
        """Log a session that cannot be read, or whose grant cannot, once; the others do not wait for it."""
        if record.name not in self._noted:
            self._noted.add(record.name)
            _log.warning("oauth.unreadable", error=record.error.message, what_to_do=record.error.suggestion)

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(_TICK_SECONDS):
            try:
                self.look(stopped.is_set)
            except (GoondanError, RedisError) as error:
                _log.warning("oauth.upkeep", error=f"{type(error).__name__}: {error}")
