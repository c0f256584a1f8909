"""What a handler tells while it runs, its progress and its output: told often, written periodically.

The processes of isolated tools import this module, and must start quickly.
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import groupby, islice
from typing import Any, ClassVar, Generic, TypeVar

from broker_config import serializer
from goondan_tasks.contract.output import (
    MOST_EARLIER,
    MOST_EMITTED_BYTES,
    Piece,
    checked_chunk,
    report_of,
    sized_piece,
    with_earlier,
)
from goondan_tasks.contract.redaction import KNOWN_SECRETS

Answered = Callable[[Any], object]
#: a message with the news of a run: a script call, or that of a tool's process to its worker
Post = TypeVar("Post")
#: calls a function after some seconds
Later = Callable[[float, Callable[[], None]], object]


class Reporter(ABC, Generic[Post]):
    """Posts the first news of a run at once, then what is new after each pause, and the rest at its end.

    No more than one post is under way, so that they do not pile up while Redis is away. One that ``waits``
    posts nothing before :meth:`begin`: most calls are short, and their news travel with their result.
    """

    __slots__ = ("_has_news", "_is_pausing", "_later", "_lock", "_send", "_written")

    #: between two posts of one run, counted from the answer to the first
    PAUSE_SECONDS: ClassVar[float]

    def __init__(
        self,
        written: Callable[[bytes], Post],
        send: Callable[[Post, Answered], object],
        later: Later,
        *,
        waits: bool = False,
    ) -> None:
        """``written`` makes a post of news, ``send`` sends it without waiting."""
        self._written = written
        self._send = send
        self._later = later
        #: also held while news are sent, so that the last ones overtake none
        self._lock = threading.Lock()
        self._has_news = False
        self._is_pausing = waits

    def begin(self) -> None:
        """Post news from now on, and those there are at once."""
        with self._lock:
            self._post_news()

    def last(self) -> Post | None:
        """Return what writes the last news, which the caller sends: the run has ended; ``None`` if none."""
        with self._lock:
            news = self._news(is_over=True) if self._has_news else None
            return None if news is None else self._written(news)

    def flush(self) -> None:
        """Post the last news at once: the run has ended."""
        last = self.last()
        if last is not None:
            self._send(last, lambda _: None)

    def _tell(self) -> None:
        """Post what is new unless a post was shortly before; the caller holds the lock, and has added it."""
        self._has_news = True
        if not self._is_pausing:
            self._post_news()

    def _post_news(self) -> None:
        news = self._news(is_over=False) if self._has_news else None
        self._is_pausing = news is not None
        if news is not None:
            self._send(self._written(news), self._answered)

    def _answered(self, answer: Any) -> None:
        self._later(self._pause_seconds, self.begin)

    @property
    def _pause_seconds(self) -> float:
        return self.PAUSE_SECONDS

    @abstractmethod
    def _news(self, *, is_over: bool) -> bytes | None:
        """Return what is new, once; the lock is held."""


class ProgressReporter(Reporter[Post]):
    """The ``progress`` of a context. A few earlier reports are sent along with the latest."""

    __slots__ = ("_recent",)
    PAUSE_SECONDS = 0.2

    def __init__(
        self,
        written: Callable[[bytes], Post],
        send: Callable[[Post, Answered], object],
        later: Later,
        *,
        waits: bool = False,
    ) -> None:
        super().__init__(written, send, later, waits=waits)
        #: the latest reports
        self._recent: deque[bytes] = deque(maxlen=MOST_EARLIER + 1)

    def __call__(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report the progress of the run; see :class:`~goondan_tasks.authoring.tool_api.ReportProgress`."""
        report = report_of(done, total, KNOWN_SECRETS.hidden_in_answer(message))
        with self._lock:
            self._recent.append(report)
            self._tell()

    def _news(self, *, is_over: bool) -> bytes:
        self._has_news = False
        return with_earlier(self._recent[-1], islice(self._recent, len(self._recent) - 1))


class OutputEmitter(Reporter[Post]):
    """The ``emit`` of a context whose call, or Turn, has a stream.

    Texts in succession are joined. News are a list of events
    (:class:`~goondan_tasks.client.turn_events.ToolEmitted`) for an entry of the stream.
    """

    __slots__ = ("_begins", "_bytes", "_head", "_number", "_pieces", "_posts")
    PAUSE_SECONDS = 0.05
    #: after this many posts the pause is twice as long, then three times, so that long runs fill no stream
    POSTS_AT_A_PACE = 100
    LONGEST_PAUSE_SECONDS = 1.0

    def __init__(
        self,
        head: Mapping[str, Any],
        written: Callable[[bytes], Post],
        send: Callable[[Post, Answered], object],
        later: Later,
        *,
        waits: bool = False,
    ) -> None:
        """Make the emitter of one run; ``head`` has the fields that its events have in common."""
        super().__init__(written, send, later, waits=waits)
        self._head = serializer.encode(dict(head), repairs=True)[1:-1]
        #: what is not posted yet, and whether a new beginning precedes it
        self._pieces: list[Piece] = []
        self._begins = False
        #: of the chunks since the beginning
        self._bytes = 0
        #: of the next event
        self._number = 0
        self._posts = 0

    def __call__(self, chunk: Any) -> None:
        """Add output; see :class:`~goondan_tasks.authoring.tool_api.EmitOutput`."""
        piece, size = checked_chunk(chunk)
        with self._lock:
            self._add(piece, size)

    def relay(self, events: Any) -> None:
        """Add what a tool's process has joined, its events; what is not valid in them is left out."""
        with self._lock, suppress(AttributeError, KeyError, TypeError, ValueError):
            for event in events:
                if event.get("truncated") is True:
                    self._add(None, MOST_EMITTED_BYTES + 1)
                else:
                    self._add(*sized_piece(event["chunk"]))

    def restart(self) -> None:
        """Make the output so far void: the handler begins again, within the same run."""
        with self._lock:
            if self._bytes:
                self._pieces, self._begins, self._bytes = [], True, 0
                self._tell()

    def _add(self, piece: Piece, size: int) -> None:
        if not size or self._bytes > MOST_EMITTED_BYTES:
            return
        self._bytes += size
        self._pieces.append(piece if self._bytes <= MOST_EMITTED_BYTES else None)
        self._tell()

    def _answered(self, answer: Any) -> None:
        if answer != 0:
            super()._answered(answer)
            return
        with self._lock:  # the stream has ended, or the claim is lost: nothing more is kept
            self._pieces, self._has_news, self._bytes = [], False, MOST_EMITTED_BYTES + 1

    @property
    def _pause_seconds(self) -> float:
        factor = 1 + self._posts // self.POSTS_AT_A_PACE
        return min(self.LONGEST_PAUSE_SECONDS, factor * self.PAUSE_SECONDS)

    def _news(self, *, is_over: bool) -> bytes | None:
        self._posts += 1
        pieces, self._pieces = self._pieces, []
        begins, self._begins = self._begins, False
        chunks = [chunk for is_text, run in groupby(pieces, _is_text) for chunk in _joined(is_text, run)]
        last = chunks[-1] if chunks and not is_over else None
        if isinstance(last, str):
            told, rest = KNOWN_SECRETS.hidden_in_part(last)
            chunks[-1:] = [told] if told else []
            self._pieces += [rest] if rest else []
        self._has_news = bool(self._pieces)
        events = [self._event("tool_restart", b"")] if begins else []
        events += [self._event("tool_output", _members(chunk)) for chunk in chunks]
        return b"[%b]" % b",".join(events) if events else None

    def _event(self, kind: str, members: bytes) -> bytes:
        number, self._number = self._number, self._number + 1
        return b'{"type":"%b",%b,"seq":%d%b}' % (kind.encode(), self._head, number, members)


def void_output(emit: Any) -> None:
    """Make what a run has emitted void, if anybody follows it: its handler begins again."""
    if isinstance(emit, OutputEmitter):
        emit.restart()


def relay_output(emit: Any, events: Any) -> None:
    """Emit what a tool's process has sent, if anybody follows it; see :meth:`OutputEmitter.relay`."""
    if isinstance(emit, OutputEmitter):
        emit.relay(events)


def _is_text(piece: Piece) -> bool:
    return isinstance(piece, str)


def _joined(is_text: bool, pieces: Any) -> list[Piece]:
    return ["".join(pieces)] if is_text else list(pieces)


def _members(piece: Piece) -> bytes:
    """Return the members of an event that say what was emitted, without secrets."""
    if piece is None:
        return b',"truncated":true'
    if isinstance(piece, str):
        data = serializer.encode(KNOWN_SECRETS.hidden_in_answer(piece), repairs=True)
    elif KNOWN_SECRETS.may_be_in(piece):
        data = serializer.encode(KNOWN_SECRETS.hidden_in_answer(serializer.decode(piece)), repairs=True)
    else:
        data = piece
    return b',"chunk":%b' % data
