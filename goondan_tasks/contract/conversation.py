"""The conversation of a thinking agent in one instance, in the instance's directory.

``agents/<agent>/messages`` has two files for the run of the last Turn. Their names end in the run's number,
the time of its claim in milliseconds. ``base-<number>.jsonl`` has the Turn's id, the number of tokens used
before, and one Message per line with which the Turn began::

    {"type": "begin", "turnId": "turn-1", "tokensBefore": 1200}
    {"id": "msg-1", "data": {"role": "user", "content": "…"}, …}

``events-<number>.jsonl`` has the changes of the Turn, and the tokens that it has used::

    {"type": "append", "message": {…}}
    {"type": "replace", "targetId": "msg-1", "message": {…}}
    {"type": "remove", "targetId": "msg-2"}
    {"type": "truncate"}
    {"type": "usage", "tokens": 300}

The next Turn folds the events into a base of its own. A Turn that is run again after its worker died begins
with the same base and drops the events of the earlier run. Only the highest number is read: a worker that
was frozen writes under the lower number of its older claim. Source: goondan runtime, Message state.
"""

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from broker_config import serializer
from goondan_tasks.contract.errors import ConversationError
from goondan_tasks.contract.messages import JsonObject, Message, WireModel, faults_of
from goondan_tasks.machine.atomic_file import make_private_directory, write_whole
from goondan_tasks.machine.inner_path import InnerPath, unresolved

# enough digits for 30,000 years in milliseconds
_BASE = re.compile(r"base-([0-9]{1,15})\.jsonl")
_OURS = re.compile(r"(?:base|events)-[0-9]{1,15}\.jsonl|\.[0-9a-f]{16}\.tmp")

#: how often reading starts over because the next Turn has removed a file
_MOST_READS = 100

_ROLES = ("system", "user", "assistant", "tool")


def _fault(data: JsonObject) -> str:
    """Return what is wrong with the data of a message, or an empty string."""
    if data and data.get("role") not in _ROLES:
        return f"the role of a message is one of: {', '.join(_ROLES)}"
    parts = data.get("content", "")
    is_list = isinstance(parts, list) and all(isinstance(part, dict) for part in parts)
    return "" if is_list or isinstance(parts, str) else "the content of a message is text, or a list of parts"


class MessageEvent(WireModel):
    """A change to a conversation."""

    type: Literal["append", "replace", "remove", "truncate"]
    message: Message | None = None
    #: the id of the message to replace or remove
    target_id: str | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if (self.message is None) != (self.type in ("remove", "truncate")):
            raise ValueError("append and replace have a message, remove and truncate have none")
        if (self.target_id is None) != (self.type in ("append", "truncate")):
            raise ValueError("replace and remove have a targetId, append and truncate have none")
        fault = "" if self.message is None else _fault(self.message.data)
        if fault:
            raise ValueError(fault)
        return self


def fold(messages: Iterable[Message], events: Iterable[MessageEvent]) -> list[Message]:
    """Apply events to messages and return the result.

    Replacing or removing a message that does not exist logs a warning. A message that is appended twice stays
    where it is.
    """
    folded = {message.id: message for message in messages}
    for event in events:
        _apply(folded, event)
    return list(folded.values())


def _apply(messages: dict[str, Message], event: MessageEvent) -> None:
    message, target = event.message, event.target_id
    if event.type == "truncate":
        messages.clear()
    elif target is None:
        if message is not None:
            messages.setdefault(message.id, message)
    elif target not in messages:
        _warn("conversation.no_such_message", type=event.type, target_id=target)
    elif message is None:
        del messages[target]
    else:
        # in the same position, perhaps under another id
        kept = [(message.id, message) if key == target else (key, one) for key, one in messages.items()]
        messages.clear()
        messages.update(kept)


def start_of_last(messages: Sequence[Message], count: int) -> int:
    """Return where the last ``count`` messages begin, or earlier, to keep calls and results together."""
    called = {call_id for message in messages for call_id in _ids(message, "tool-call")}
    without_call: set[str] = set()
    for index in range(len(messages) - 1, -1, -1):
        without_call |= _ids(messages[index], "tool-result") & called
        without_call -= _ids(messages[index], "tool-call")
        if len(messages) - index >= count and not without_call:
            return index
    return 0


def _ids(message: Message, kind: str) -> set[str]:
    parts = message.data.get("content")
    of_kind = [part for part in parts if part.get("type") == kind] if isinstance(parts, list) else []
    return {str(part.get("toolCallId")) for part in of_kind}


def must_stay(message: Message, turn_id: str) -> bool:
    """Return whether extensions must keep a message: it is the Turn's own input, or pinned."""
    is_input = message.data.get("role") == "user" and message.metadata.get("turnId") == turn_id
    return is_input or message.metadata.get("pinned") is True


@dataclass(slots=True)
class Conversation:
    """The messages of one run of a Turn, and their changes, which are written to ``file`` if there is one.

    Extensions use it as ``ctx.conversation_state``.
    """

    base_messages: Sequence[Message] = ()
    #: the events of the run
    file: InnerPath | None = None
    #: the tokens used by earlier Turns, and by this one so far
    tokens_before: int = 0
    tokens: int = 0
    #: whether the model has refused it as too long; a step middleware may then shorten it
    is_too_long: bool = False
    events: list[MessageEvent] = field(default_factory=list)
    _next: dict[str, Message] = field(init=False)
    #: the lines that are not in the file yet, and the tokens that are
    _unwritten: list[bytes] = field(default_factory=list)
    _written_tokens: int = 0

    def __post_init__(self) -> None:
        self._next = {message.id: message for message in self.base_messages}

    @property
    def next_messages(self) -> list[Message]:
        """The messages for the next request to the model."""
        return list(self._next.values())

    def emit(self, event: MessageEvent | JsonObject) -> None:
        """Change the conversation; the event is written to the file with the next request.

        Raises:
            ValueError: the event is not valid.
        """
        try:
            if not isinstance(event, MessageEvent):
                event = MessageEvent.model_validate(event)
            self._unwritten.append(_line(event.to_wire()))
        except ValidationError as error:
            raise ValueError(f"The message event is not valid: {faults_of(error)}.") from error
        except serializer.NotJsonError as error:
            raise ValueError(f"The message event is not valid: {error}.") from error
        self.events.append(event)
        _apply(self._next, event)

    def append(self, message: Message) -> None:
        """Append a message, under a new id if its id is taken."""
        number, name = 1, message.id
        while name in self._next:
            number, name = number + 1, f"{message.id}~{number + 1}"
        self.emit(MessageEvent(type="append", message=message.model_copy(update={"id": name})))

    def restore(self, messages: Sequence[Message]) -> None:
        """Make these the messages of the conversation again."""
        self.emit(MessageEvent(type="truncate"))
        for message in messages:
            self.emit(MessageEvent(type="append", message=message))

    def write(self) -> None:
        """Write new events and the tokens used so far.

        Raises:
            OSError: they cannot be written.
        """
        if self.tokens != self._written_tokens:
            self._unwritten.append(_line({"type": "usage", "tokens": self.tokens}))
            self._written_tokens = self.tokens
        if self.file is not None and self._unwritten:
            data = b"".join(self._unwritten)
            with self.file.open_parent() as (directory, name), _opened(directory, name, "ab") as file:
                size = file.tell()
                if file.write(data) < len(data):  # the disk is full; do not leave an incomplete line
                    file.truncate(size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.file.absolute))
        self._unwritten.clear()

    def end(self) -> None:
        """Write new events and tokens; if there are any, the file is synced to the disk.

        Raises:
            OSError: they cannot be written.
        """
        is_written = not self._unwritten and self.tokens == self._written_tokens
        self.write()
        if self.file is not None and not is_written:
            with self.file.open_parent() as (directory, name), _opened(directory, name, "rb") as file:
                os.fsync(file.fileno())
                os.fsync(directory)


class _Note(WireModel):
    """A line that is neither a message nor an event: the beginning of a Turn, or its usage so far."""

    turn_id: str = ""
    tokens_before: int = Field(default=0, ge=0)
    tokens: int = Field(default=0, ge=0)


@dataclass(slots=True)
class _Kept:
    """The content of the files of one run."""

    number: int = 0
    turn_id: str = ""
    base: list[Message] = field(default_factory=list)
    #: the line of each message of the base, by the message's ``id()``
    lines: dict[int, bytes] = field(default_factory=dict)
    events: list[MessageEvent] = field(default_factory=list)
    tokens_before: int = 0
    tokens: int = 0

    @property
    def messages(self) -> list[Message]:
        return fold(self.base, self.events)


@dataclass(frozen=True, slots=True)
class ConversationFiles:
    """The files of one conversation; no link on the way to them is followed."""

    place: InnerPath

    @classmethod
    def of(cls, instance_directory: Path, agent: str) -> Self:
        parts = ("agents", agent, "messages")
        return cls(unresolved(instance_directory, parts, str(instance_directory.joinpath(*parts))))

    @property
    def directory(self) -> Path:
        return self.place.absolute

    def begin(self, turn_id: str, *, claimed_at: float, now: float) -> Conversation:
        """Begin a run of a Turn: return the conversation with the changes of the previous Turn.

        ``claimed_at`` is when the run was claimed; both times are milliseconds, Redis time.

        Raises:
            ConversationError: a file cannot be read, or a newer run has begun.
            OSError: a file cannot be written.
        """
        make_private_directory(self.place.root)
        with self.place.open_directory(make=True) as directory:
            return self._begin(directory, turn_id, claimed_at=claimed_at, now=now)

    def _begin(self, directory: int, turn_id: str, *, claimed_at: float, now: float) -> Conversation:
        os.fchmod(directory, 0o700)
        seen = sorted(filter(_OURS.fullmatch, _names(directory)))
        kept, number = self._newest(directory), int(claimed_at)
        if number <= kept.number:
            if number < kept.number <= now:
                raise ConversationError(f"{self.directory}: a newer run of a Turn has begun.")
            number = kept.number + 1  # same millisecond, or the Redis clock was set back
        messages, tokens = kept.base, kept.tokens_before
        if kept.turn_id != turn_id:
            messages, tokens = kept.messages, tokens + kept.tokens
        begin = _line({"type": "begin", "turnId": turn_id, "tokensBefore": tokens})
        lines = (kept.lines.get(id(message)) or _line(message.to_wire()) for message in messages)
        data = b"".join([begin, *lines])
        write_whole(f"base-{number}.jsonl", data, directory=directory, is_durable=True)
        for name in seen:  # earlier runs and leftovers of dead workers; bases first, as readers expect
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
        name = f"events-{number}.jsonl"
        given = str(self.directory / name)
        events = replace(self.place, parts=(*self.place.parts, name), given=given)
        return Conversation(messages, events, tokens)

    def read(self) -> list[Message]:
        """Return the messages, including those of a Turn in progress.

        Raises:
            ConversationError: a file cannot be read.
        """
        try:
            with self.place.open_directory() as directory:
                return self._newest(directory).messages
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConversationError(f"{self.directory}: {error.strerror}") from error

    def _newest(self, directory: int) -> _Kept:
        for _ in range(_MOST_READS):
            bases = map(_BASE.fullmatch, _names(directory))
            number = max((int(base[1]) for base in bases if base), default=0)
            try:
                return self._kept(directory, number) if number else _Kept()
            except FileNotFoundError:
                continue  # the next Turn has begun meanwhile
        raise ConversationError(f"{self.directory}: the files keep changing.")

    def _kept(self, directory: int, number: int) -> _Kept:
        kept = _Kept(number)
        events, base = (self.directory / f"{kind}-{number}.jsonl" for kind in ("events", "base"))
        has_events = events.name in _names(directory)
        for place, line in _lines(directory, events, may_be_torn=True) if has_events else ():
            value = _object(events, place, line)
            if value.get("type") == "usage":
                kept.tokens = _read(_Note, events, place, value).tokens
            else:
                kept.events.append(_read(MessageEvent, events, place, value))
        for place, line in _lines(directory, base):
            if not kept.base and (value := _object(base, place, line)).get("type") == "begin":
                begin = _read(_Note, base, place, value)
                kept.turn_id, kept.tokens_before = begin.turn_id, begin.tokens_before
                continue
            try:  # pydantic's parser takes a third of the time, but refuses very deep nesting
                message = Message.model_validate_json(line)
            except ValidationError:
                message = _read(Message, base, place, _object(base, place, line))
            if fault := _fault(message.data):
                raise _damaged(base, place, fault)
            kept.base.append(message)
            kept.lines[id(message)] = line + b"\n"
        return kept


def _names(directory: int | Path) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


Model = TypeVar("Model", bound=WireModel)


def _lines(directory: int, file: Path, *, may_be_torn: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield the non-empty lines with their numbers, without an incomplete last one if ``may_be_torn``.

    ``file`` is opened by its name in ``directory``, a descriptor; errors name its path.

    Raises:
        FileNotFoundError: there is no such file.
        ConversationError: the file cannot be read.
    """
    try:
        with _opened(directory, file.name, "rb") as opened:
            lines = opened.read().split(b"\n")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConversationError(f"{file}: {error.strerror}") from error
    for number, line in enumerate(lines, start=1):
        if may_be_torn and number == len(lines) and line and not _is_json(line):
            _warn("conversation.torn_line", file=str(file), line=number)
        elif line.strip():
            yield number, line


def _opened(directory: int, name: str, mode: Literal["ab", "rb"]) -> FileIO:
    """Open a regular file of a directory, which is a descriptor: a pipe in its place would block forever.

    Raises:
        OSError: it is a link, or not a regular file.
    """

    def opener(path: str, flags: int) -> int:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=directory)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return descriptor

    return open(name, mode, buffering=0, opener=opener)


def _is_json(line: bytes) -> bool:
    try:
        serializer.decode(line)
    except serializer.NotJsonError:
        return False
    return True


def _object(file: Path, number: int, line: bytes) -> JsonObject:
    try:
        value = serializer.decode(line)
    except serializer.NotJsonError as error:
        raise _damaged(file, number, str(error)) from error
    if not isinstance(value, dict):
        raise _damaged(file, number, "it is not an object")
    return value


def _read(model: type[Model], file: Path, number: int, value: JsonObject) -> Model:
    try:
        return model.from_wire(value)
    except ValidationError as error:
        raise _damaged(file, number, faults_of(error)) from error


def _damaged(file: Path, number: int, why: str) -> ConversationError:
    return ConversationError(f"{file}, line {number}: {why}")


def _line(value: JsonObject) -> bytes:
    return serializer.encode(value) + b"\n"


def _warn(event: str, **fields: Any) -> None:
    import structlog  # few commands and producers log anything

    structlog.get_logger(__name__).warning(event, **fields)
