"""Runs one Connection: takes its lease, starts its connector, hands its events over, starts it again.

Of all processes that run a Connection one has its lease and runs the connector; the others wait for it. A
connector that fails is started again after a pause that grows, and disturbs no other. A process that cannot
renew its lease ends its connector before the lease is over, so no two poll a source at once.
"""

import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any

import structlog
from pydantic import ValidationError
from redis.exceptions import RedisError

from broker_config import serializer
from broker_config.connections import retrying
from broker_config.process_group import ProcessGroup
from goondan_tasks.authoring.connector_api import ConnectorEvent
from goondan_tasks.client import Client
from goondan_tasks.connectors.handover import Source, hand_over
from goondan_tasks.connectors.process import ConnectorProcess, ConnectorProgram
from goondan_tasks.connectors.store import ConnectionStore, Lease
from goondan_tasks.contract.errors import BrokerUnreachableError, ConnectorError, GoondanError
from goondan_tasks.contract.messages import JsonObject, faults_of
from goondan_tasks.fleet.crash_backoff import BackoffRules

logger = structlog.get_logger("goondan.connector")

#: how long a connector may take to start, and to end when it is asked to
START_SECONDS, STOP_SECONDS = 60.0, 5.0
#: a run that lasted so long has not failed at once: the pauses begin anew
HEALTHY_SECONDS = 60.0
BACKOFF = BackoffRules(crashes=1)


class ConnectionRunner:
    """Runs one Connection in a thread of its own until :meth:`stop`."""

    def __init__(
        self,
        program: ConnectorProgram,
        source: Source,
        *,
        client: Client,
        store: ConnectionStore,
        group: ProcessGroup,
        owner: str,
        backoff: BackoffRules = BACKOFF,
    ) -> None:
        self.program, self._source = program, source
        self._client, self._store, self._group = client, store, group
        self._owner, self._backoff = owner, backoff
        self._stopping = threading.Event()
        self._log = logger.bind(connection=program.connection, connector=program.connector)
        self._crashes = 0
        self._thread = threading.Thread(
            target=self._run, name=f"connection {program.connection}", daemon=True
        )

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Let the connector be asked to end, and begin no other run. This does not wait."""
        self._stopping.set()

    def join(self, seconds: float) -> bool:
        """Wait for the end; return whether it has come."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            lease = Lease(self._store.key(self.program.connection), uuid.uuid4().hex, self._owner)
            begun = time.monotonic()
            wait = self._take(lease)
            if wait:
                self._stopping.wait(wait)
                continue
            try:
                error = self._run_once(lease, begun)
            except Exception as fault:  # noqa: BLE001 - the fault of a run ends no Connection
                self._log.exception("connector.run-failed")
                error = f"{type(fault).__name__}: {fault}"
            self.let_go(lease, error or "")
            if error is None:
                return
            self._crashes = 1 if time.monotonic() - begun > HEALTHY_SECONDS else self._crashes + 1
            pause = self._backoff.pause_ms(self._crashes) / 1000
            if not self._stopping.is_set():
                self._log.error("connector.failed", error=error, retry_in_seconds=pause)
                self._stopping.wait(pause)

    def _take(self, lease: Lease) -> float:
        """Take the lease; return 0, or how long to wait before the next attempt (seconds)."""
        try:
            held = self._store.hold(lease)
        except (RedisError, GoondanError) as error:
            self._log.warning("connector.no-lease", error=str(error))
            return 1.0
        return min(held + 0.05, self._store.lease_seconds / 3) if held else 0.0

    def let_go(self, lease: Lease, error: str = "") -> None:
        """End a lease, and note how its run has failed."""
        try:
            self._store.let_go(lease, error)
        except (RedisError, GoondanError) as failure:  # it ends by itself
            self._log.warning("connector.lease-not-ended", error=str(failure))

    def _run_once(self, lease: Lease, taken: float) -> str | None:
        """Run the connector to its end; return why it failed, ``None`` if it is done or was stopped.

        ``taken`` is when the lease was asked for, a ``time.monotonic()``.
        """
        try:
            process = ConnectorProcess(self.program, self._group)
        except (GoondanError, OSError) as error:
            return str(error)
        run = _Run(process, lease, self, taken)
        helpers = [threading.Thread(target=one, daemon=True) for one in (run.keep, run.renew)]
        for helper in helpers:
            helper.start()
        try:
            run.serve()
        finally:
            run.has_ended.set()
            process.close()
            helpers[0].join()
        return None if self._stopping.is_set() and run.error is None else run.outcome()

    # What a run asks for

    def answer(self, lease: Lease, name: str, value: Any) -> Any:
        """Return the answer to what a connector asks for.

        Raises:
            ConnectorError: it cannot have it.
        """
        try:
            with retrying(float("inf"), is_needless=self._stopping.is_set):
                if name == "emit":
                    return self._emit(lease, value)
                if name == "cursor.get":
                    return self._store.cursor(self.program.connection)
                if name == "cursor.set":
                    return self._store.move_cursor(lease, value)
        except serializer.NotJsonError as error:
            raise ConnectorError(f"That is not JSON, or its text is not Unicode: {error}.") from error
        raise ConnectorError(f"A connector cannot ask for {name!r}.")

    def _emit(self, lease: Lease, value: Any) -> JsonObject:
        try:
            try:
                event = ConnectorEvent.from_wire(value)
            except (ValidationError, TypeError) as error:
                faults = faults_of(error) if isinstance(error, ValidationError) else str(error)
                raise ConnectorError(f"The event is not valid: {faults}.") from error
            accepted = hand_over(self._client, self._source, event)
        except ConnectorError as error:
            self._log.warning("connector.refused", error=error.message)
            self._store.count(lease, "refused", error.message)
            raise
        self._store.count(lease, "events")
        self._log.debug("connector.emitted", agent=accepted.agent, instance=accepted.instance_key)
        return accepted.to_wire()

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to end."""
        return self._stopping.is_set()

    @property
    def lease_seconds(self) -> float:
        """How long the lease lasts without a renewal."""
        return self._store.lease_seconds

    def renew(self, lease: Lease) -> float:
        """Renew the lease; return 0, or more if another process has it."""
        return self._store.hold(lease)


class _Run:
    """One run of a connector: its messages, and its lease."""

    def __init__(
        self, process: ConnectorProcess, lease: Lease, runner: ConnectionRunner, renewed: float
    ) -> None:
        self._process, self._lease, self._runner = process, lease, runner
        #: when the last renewal that has succeeded was begun
        self._renewed = renewed
        self.has_ended = threading.Event()
        self._has_started = False
        self._is_done = False
        #: why it failed
        self.error: str | None = None

    def serve(self) -> None:
        """Deal with the messages of the process until it ends."""
        for message in self._process.messages():
            kind = message["type"]
            if kind == "started":
                self._has_started = True
                self._process.log.info("connector.started")
            elif kind == "ask":
                self._process.write({"type": "answer", "id": message.get("id"), **self._answer(message)})
            elif kind == "ended":
                error = message.get("error")
                self._is_done, self.error = True, None if error is None else str(error)
                if trace := message.get("trace"):
                    self._process.log.error("connector.error", trace=trace)
                self._process.wait(STOP_SECONDS)
                return

    def _answer(self, message: Mapping[str, Any]) -> JsonObject:
        try:
            return {"value": self._runner.answer(self._lease, str(message.get("name")), message.get("value"))}
        except (GoondanError, RedisError) as error:
            code = error.code if isinstance(error, GoondanError) else BrokerUnreachableError.code
            suggestion = error.suggestion if isinstance(error, GoondanError) else None
            return {"error": {"code": code, "message": str(error), "suggestion": suggestion}}

    def renew(self) -> None:
        """Renew the lease now and then; this may wait for Redis."""
        pause = self._runner.lease_seconds / 3
        while not self.has_ended.wait(pause):
            asked = time.monotonic()
            try:
                if self._runner.renew(self._lease):
                    return self._end("Another process has taken its lease.")
                self._renewed, pause = asked, self._runner.lease_seconds / 3
                if self.has_ended.is_set():  # meanwhile: the lease was given back
                    self._runner.let_go(self._lease)
            except (RedisError, GoondanError) as error:
                self._process.log.warning("connector.lease-not-renewed", error=str(error))
                pause = min(0.5, self._runner.lease_seconds / 6)
        return None

    def keep(self) -> None:
        """End the process before its lease is over, and one that does not start or stop in time."""
        begun, stop_by = time.monotonic(), None
        while not self.has_ended.wait(min(0.5, self._runner.lease_seconds / 20)):
            now = time.monotonic()
            if self._runner.is_stopping and stop_by is None:
                stop_by = now + STOP_SECONDS
                # one that does not read what it is told keeps this thread waiting
                threading.Thread(target=self._process.stop, daemon=True).start()
            if stop_by is not None and now > stop_by:
                return self._end("It did not end when it was asked to.")
            if not self._has_started and now - begun > START_SECONDS:
                return self._end(f"It did not start within {START_SECONDS:g} s.")
            if now - self._renewed > self._runner.lease_seconds * 0.8:
                return self._end("Its lease could not be renewed.")
        return None

    def _end(self, reason: str) -> None:
        self.error = reason
        self._process.kill()

    def outcome(self) -> str | None:
        """Return why the run failed, ``None`` if ``connect`` has returned."""
        if self.error is not None or self._is_done:
            return self.error
        if self._process.fault is not None:
            return self._process.fault
        code = self._process.wait(0)
        return (
            f"It was ended by signal {-code}." if code is not None and code < 0 else f"It ended with {code}."
        )
