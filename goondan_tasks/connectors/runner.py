"""Runs one Connection: takes its lease, starts its connector, hands its events over, starts it again.

Of all processes that run a Connection one has its lease and runs the connector; the others wait for it. A
connector that fails is started again after a pause that grows, and disturbs no other. A process that cannot
renew its lease ends its connector before the lease is over, so no two poll a source at once.

A connector that answers HTTP requests runs in every process that serves them. The processes share one lease,
which only shows that the Connection is served.
"""

import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import structlog
from pydantic import ValidationError
from redis.exceptions import RedisError

from broker_config import serializer
from broker_config.connections import retrying
from goondan_tasks.client import Client
from goondan_tasks.connectors.child import MAX_MESSAGE_BYTES
from goondan_tasks.connectors.handover import Source, hand_over
from goondan_tasks.connectors.open_requests import ANSWER_SECONDS, PASSING, OpenRequests
from goondan_tasks.connectors.process import ConnectorProcess, ConnectorProgram
from goondan_tasks.connectors.routing import Destination
from goondan_tasks.connectors.slots import CronSlots, schedules_of
from goondan_tasks.connectors.store import ConnectionStore, Lease
from goondan_tasks.connectors.terminal import TerminalLines
from goondan_tasks.contract.errors import (
    BrokerUnreachableError,
    ConnectorError,
    GoondanError,
    TooManyWaitingError,
    WebhookRefusedError,
)
from goondan_tasks.contract.messages import JsonObject, faults_of
from goondan_tasks.contract.wording import shown
from goondan_tasks.fleet.crash_backoff import BackoffRules

logger = structlog.get_logger("goondan.connector")

#: how long a connector may take to start, and to end when it is asked to
START_SECONDS, STOP_SECONDS = 60.0, 5.0
#: for which part of a lease a connector runs without a renewal
SAFE = 0.8
#: a run that lasted so long has not failed at once: the pauses begin again
HEALTHY_SECONDS = 60.0
BACKOFF = BackoffRules(crashes=1)
#: the token of the lease that the processes of an HTTP connector share
SHARED = "http"
#: how long an event of a request may wait for Redis
REQUEST_SECONDS = 3.0
#: how many events of requests are handed over at once, and how many further messages of the process are read
HANDING_OVER, READ_AHEAD = 16, 256
_RETURNED = "connect has returned; one that answers requests ends with ctx.http(handler)."
#: how often an event that waits looks whether the agent has room
ROOM_SECONDS = 0.5
#: answers that may take long; others are given meanwhile
_LASTING = frozenset({"line", "oauth.token"})


class ConnectionRunner:
    """Runs one Connection in a thread of its own until :meth:`stop`."""

    def __init__(
        self,
        program: ConnectorProgram,
        source: Source,
        *,
        client: Client,
        store: ConnectionStore,
        owner: str,
        backoff: BackoffRules = BACKOFF,
        lines: TerminalLines | None = None,
        answer_seconds: float = ANSWER_SECONDS,
        tokens: Callable[[Any], JsonObject] | None = None,
    ) -> None:
        """``lines`` is what the connector gets if it reads lines; ``tokens`` answers requests for tokens."""
        self.program, self._source, self._tokens = program, source, tokens
        self._slots = CronSlots(store, program.connection, schedules_of(program))
        self._client, self._store = client, store
        self._owner, self._backoff = owner, backoff
        self._lines = lines if program.reads_lines else None
        self._stopping = threading.Event()
        self._log = logger.bind(connection=program.connection, connector=program.connector)
        #: the requests that the connector answers; ``None`` if it answers none
        self.requests = (
            OpenRequests(program.connection, answer_seconds=answer_seconds) if program.answers_http else None
        )
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
            token = uuid.uuid4().hex if self.requests is None else SHARED
            lease = Lease(
                self._store.key(self.program.connection), token, self._owner, self.program.connector
            )
            begun = time.monotonic()
            wait = self._take(lease)
            if wait and self.requests is None:
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
            if self.requests is None:
                self._store.let_go(lease, error)
            elif error:
                self._store.note_error(lease, error)
        except (RedisError, GoondanError) as failure:  # it ends by itself
            self._log.warning("connector.lease-not-ended", error=str(failure))

    def _run_once(self, lease: Lease, taken: float) -> str | None:
        """Run the connector to its end; return why it failed, ``None`` if it is done or was stopped.

        ``taken`` is when the lease was asked for, a ``time.monotonic()``.
        """
        try:
            process = ConnectorProcess(self.program)
        except (GoondanError, OSError) as error:
            return str(error)
        run = _Run(process, lease, self, taken)
        run.tell_leased()
        helpers = [threading.Thread(target=one, daemon=True) for one in (run.keep, run.renew)]
        for helper in helpers:
            helper.start()
        try:
            with self._answering(run):
                run.serve()
        finally:
            run.has_ended.set()
            process.close()
            helpers[0].join()
        return None if self._stopping.is_set() and run.error is None else run.outcome()

    @contextmanager
    def _answering(self, run: "_Run") -> Iterator[None]:
        """Let threads answer what an HTTP connector asks for: requests must not wait for each other."""
        if self.requests is None:
            yield
            return
        run.threads = ThreadPoolExecutor(HANDING_OVER, "connection")
        try:
            yield
        finally:
            self.requests.detach()
            run.threads.shutdown(wait=False, cancel_futures=True)

    # What a run asks for

    def answer(self, run: "_Run", name: str, value: Any, size: int | None = None) -> Any:
        """Return the answer to what a connector asks for; ``size`` is that of a value that is too large.

        Raises:
            ConnectorError: it cannot have it.
        """
        lease = run.lease
        until = float("inf") if self.requests is None else time.monotonic() + REQUEST_SECONDS
        try:
            with retrying(until, is_needless=self._stopping.is_set):
                if name == "emit":
                    return self._emit(run, value, size)
                if size is not None:
                    raise _too_large(size)
                if name == "cursor.get":
                    return self._store.cursor(self.program.connection)
                if name == "cursor.set":
                    return self._store.move_cursor(lease, value)
                if name == "cron.next":
                    return self._slots.next(lease, value)
                if name == "cron.done":
                    return self._slots.done(lease, value["trigger"], value["slot"])
                if name == "oauth.token" and self._tokens is not None:
                    return self._tokens(value)
        except serializer.NotJsonError as error:
            raise ConnectorError(f"That is not JSON, or its text is not Unicode: {error}.") from error
        except (LookupError, TypeError) as error:
            raise ConnectorError(f"A connector cannot ask for {name!r} with {shown(value)}.") from error
        raise ConnectorError(f"A connector cannot ask for {name!r}.")

    def _emit(self, run: "_Run", value: Any, size: int | None) -> JsonObject:
        lease = run.lease
        try:
            if size is not None:
                raise _too_large(size)
            try:
                event = self._source.read(value)
            except (ValidationError, TypeError) as error:
                faults = faults_of(error) if isinstance(error, ValidationError) else str(error)
                raise ConnectorError(f"The event is not valid: {faults}.") from error
            accepted = hand_over(self._client, self._source, event, lambda to: self._require_room(to, run))
        except TooManyWaitingError:
            raise
        except ConnectorError as error:
            self._log.warning("connector.refused", error=error.message)
            self._store.count(lease, "refused", error.message)
            raise
        self._store.count(lease, "events")
        self._log.debug("connector.emitted", agent=accepted.agent, instance=accepted.instance_key)
        return accepted.to_wire()

    def next_line(self, lease: Lease, has_ended: threading.Event) -> JsonObject | None:
        """Return the next line of this program's standard input, as soon as there is one.

        Raises:
            ConnectorError: it is not for this connector.
        """
        if self._lines is None:
            raise ConnectorError(
                "The connector gets no lines of the standard input.",
                suggestion="Write 'stdin: true' into the spec of the Connector.",
            )
        line = self._lines.next(lease.token, has_ended)
        return None if line is None else asdict(line)

    def _require_room(self, to: Destination, run: "_Run") -> None:
        """Wait until few enough events wait for an agent.

        Raises:
            TooManyWaitingError: they are too many, and it is the event of a request, or the run ends.
        """
        most = self._source.max_waiting
        while (waiting := self._store.waiting(to.agent, to.instance_key)) >= most:
            text = (
                f"{waiting:,} events wait for the agent {to.agent!r}: {most:,} or more, as maxWaiting says."
            )
            if self.requests is not None:
                raise TooManyWaitingError(text)
            if run.is_over:
                raise TooManyWaitingError(f"The connector is ending. {text}")
            self._log.warning("connector.waits", agent=to.agent, waiting=waiting, most=most)
            self._stopping.wait(ROOM_SECONDS)

    def refused(self, lease: Lease, error: str) -> None:
        """Count a request that the connector has refused."""
        self._log.warning("connector.request-refused", error=error)
        try:
            self._store.count(lease, "refused", error)
        except (RedisError, GoondanError) as failure:
            self._log.warning("connector.not-counted", error=str(failure))

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


def _too_large(size: int) -> ConnectorError:
    return ConnectorError(
        f"It has {size:,} bytes as JSON, more than {MAX_MESSAGE_BYTES:,}.",
        suggestion="Hand over where the data is, such as a URL, in its place.",
    )


class _Run:
    """One run of a connector: its messages, and its lease."""

    def __init__(
        self, process: ConnectorProcess, lease: Lease, runner: ConnectionRunner, renewed: float
    ) -> None:
        self._process, self.lease, self._runner = process, lease, runner
        #: when the last renewal that has succeeded was begun
        self._renewed = renewed
        self.has_ended = threading.Event()
        self._has_started = False
        self._is_done = False
        #: why it failed
        self.error: str | None = None
        #: where its questions are answered, if not one after the other
        self.threads: ThreadPoolExecutor | None = None
        self._read_ahead = threading.BoundedSemaphore(READ_AHEAD)

    @property
    def is_over(self) -> bool:
        """Whether it is to end, or has ended."""
        return self._runner.is_stopping or self.error is not None or self.has_ended.is_set()

    def serve(self) -> None:
        """Deal with the messages of the process until it ends."""
        for message in self._process.messages():
            kind = message["type"]
            if kind == "started":
                self._has_started = True
                self._process.log.info("connector.started")
            elif kind == "ask" and message.get("name") in _LASTING:
                threading.Thread(target=self._answer, args=(message,), daemon=True).start()
            elif kind == "ask":
                self._do(self._answer, message)
            elif kind == "serving" and self._runner.requests is not None:
                self._runner.requests.attach(self._process.write, self._end)
                self._process.log.info("connector.serves")
            elif kind == "response" and self._runner.requests is not None:
                self._runner.requests.respond(message)
                self._note(message)
            elif kind == "ended":
                error = message.get("error")
                self._is_done, self.error = True, None if error is None else str(error)
                if trace := message.get("trace"):
                    self._process.log.error("connector.error", trace=trace)
                self._process.wait(STOP_SECONDS)
                return

    def _do(self, work: Callable[..., object], *arguments: Any) -> None:
        """Do something now, or in a thread if the run has some; wait if much is to be done already."""
        if self.threads is None:
            work(*arguments)
            return
        self._read_ahead.acquire()
        done = self.threads.submit(work, *arguments)
        done.add_done_callback(lambda _: self._read_ahead.release())

    def _answer(self, message: Mapping[str, Any]) -> None:
        self._process.write({"type": "answer", "id": message.get("id"), **self._answered(message)})

    def _answered(self, message: Mapping[str, Any]) -> JsonObject:
        try:
            if message.get("name") == "line":
                return {"value": self._runner.next_line(self.lease, self.has_ended)}
            size = message.get("bytes")
            is_too_large = type(size) is int
            name, value = str(message.get("name")), message.get("value")
            return {"value": self._runner.answer(self, name, value, size if is_too_large else None)}
        except (GoondanError, RedisError) as error:
            code = error.code if isinstance(error, GoondanError) else BrokerUnreachableError.code
            suggestion = error.suggestion if isinstance(error, GoondanError) else None
            return {"error": {"code": code, "message": str(error), "suggestion": suggestion}}

    def _note(self, response: Mapping[str, Any]) -> None:
        """Log why a request has no answer of the connector's, and count a refused one."""
        error = response.get("error")
        if not isinstance(error, dict):
            return
        text = str(error.get("message"))
        if error.get("code") == WebhookRefusedError.code:
            self._do(self._runner.refused, self.lease, text)
        elif error.get("code") in PASSING:
            self._process.log.warning("connector.request-put-off", error=text)
        elif error.get("code") == ConnectorError.code:
            self._process.log.warning("connector.request-refused", error=text)
        else:
            self._process.log.error("connector.request-failed", error=text, trace=response.get("trace"))

    def renew(self) -> None:
        """Renew the lease now and then; this may wait for Redis."""
        pause = self._runner.lease_seconds / 3
        while not self.has_ended.wait(pause):
            asked = time.monotonic()
            try:
                if self._runner.renew(self.lease) and self._runner.requests is None:
                    return self._end("Another process has taken its lease.")
                self._renewed, pause = asked, self._runner.lease_seconds / 3
                self.tell_leased()
                if self.has_ended.is_set():  # meanwhile: the lease was given back
                    self._runner.let_go(self.lease)
            except (RedisError, GoondanError) as error:
                self._process.log.warning("connector.lease-not-renewed", error=str(error))
                pause = min(0.5, self._runner.lease_seconds / 6)
        return None

    def tell_leased(self) -> None:
        """Tell the process for how long it may run; it ends by itself if this program is frozen meanwhile."""
        if self._runner.requests is None:
            self._process.write({"type": "leased", "seconds": self._left(time.monotonic())})

    def _left(self, now: float) -> float:
        """Return how long the process may run without a renewal of the lease (seconds)."""
        is_alone = self._runner.requests is None
        return self._renewed + SAFE * self._runner.lease_seconds - now if is_alone else math.inf

    def keep(self) -> None:
        """End the process before its lease is over, and one that does not start or stop in time."""
        begun, stop_by = time.monotonic(), None
        while not self.has_ended.wait(min(0.5, self._runner.lease_seconds / 20)):
            now = time.monotonic()
            if self._runner.is_stopping and stop_by is None:
                stop_by = now + STOP_SECONDS
                self._process.stop()
            if stop_by is not None and now > stop_by:
                return self._end("It did not end when it was asked to.")
            if not self._has_started and now - begun > START_SECONDS:
                return self._end(f"It did not start within {START_SECONDS:g} s.")
            if self._left(now) < 0:
                return self._end("Its lease could not be renewed.")
        return None

    def _end(self, reason: str) -> None:
        self.error = reason
        self._process.kill()

    def outcome(self) -> str | None:
        """Return why the run failed, ``None`` if ``connect`` has returned."""
        if self.error is not None:
            return self.error
        if self._is_done:
            return None if self._runner.requests is None else _RETURNED
        if self._process.fault is not None:
            return self._process.fault
        code = self._process.wait(0)
        return (
            f"It was ended by signal {-code}." if code is not None and code < 0 else f"It ended with {code}."
        )
