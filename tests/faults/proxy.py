"""A TCP proxy before a Redis that delays, cuts, refuses, holds and answers errors, as the test says.

::

    with Proxy(stack.redis_url) as proxy:
        client = Client.connect(proxy.url)
        proxy.delay(0.15)                   # 150 ms each way
        proxy.cut()                         # reset every open connection
        proxy.cut_next(share=0.5)           # reset the connection of the next command, half of which arrives
        proxy.cut_at(is_get, nth=3)         # reset the connection of the third such command
        proxy.admit(3)                      # three more connections are let in, any further one is reset
        proxy.hold()                        # half-open: nothing is forwarded or closed any more
        proxy.answer("LOADING Redis is loading the dataset in memory")
        proxy.lead_to(other.url)            # new connections reach another server

Everything may be called from any thread and while traffic flows; what it says holds from then on.
"""

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar, cast
from urllib.parse import urlsplit, urlunsplit

import hiredis

Direction = Literal["to server", "to client"]
BOTH: tuple[Direction, Direction] = ("to server", "to client")
#: a command as Redis gets it: its name in capitals, then its arguments
Command = list[bytes]
#: what a connection is set up with; Redis answers it in nearly every state
SET_UP = frozenset({b"AUTH", b"HELLO", b"CLIENT", b"SELECT", b"MULTI", b"EXEC"})

START_SECONDS = 10.0
#: how long the proxy's end waits before it looks for connections that came meanwhile
CLOSING_SECONDS = 0.05
READ_BYTES = 65_536
#: closing a socket with this option resets the connection
LINGER_NOT = struct.pack("ii", 1, 0)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cut:
    """Cuts one connection at the first matching packet, of which ``share`` is forwarded before."""

    direction: Direction
    share: float
    matches: Callable[[bytes], bool]


@dataclass(slots=True)
class CommandCut:
    """Cuts the connection of the last of so many matching commands, before it arrives or at its answer."""

    matches: Callable[[str, Command], bool]
    missing: int
    is_carried_out: bool


@dataclass(slots=True)
class Rules:
    """What is done at present, and what has been done. Only the proxy's own thread looks at it."""

    delay: float = 0.0
    #: how many more connections are let in; all if none
    admitted: int | None = None
    #: what is held back on connections that are opened from now on
    held: tuple[Direction, ...] = ()
    cut: Cut | None = None
    command_cut: CommandCut | None = None
    error: Callable[[Command], bytes | None] = lambda command: None
    accepted: int = 0
    refused: int = 0
    cuts: int = 0
    answered: int = 0


class Proxy:
    """The proxy: a context manager. ``url`` is the server's URL with the proxy's address in it."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._rules = Rules()
        self._links: set[Link] = set()
        #: the connections that are not closed yet, on both sides, and what serves each
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[Any]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._accept, "127.0.0.1", 0))
        port = self._server.sockets[0].getsockname()[1]
        user, at, _ = self._parts.netloc.rpartition("@")
        self.url = urlunsplit(self._parts._replace(netloc=f"{user}{at}127.0.0.1:{port}"))
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS)
        self._loop.close()

    @property
    def open(self) -> int:
        """How many connections are open."""
        return len(self._links)

    @property
    def seen(self) -> Rules:
        """The counts of connections accepted, refused and cut, and of errors answered so far."""
        return self._rules

    def delay(self, seconds: float) -> None:
        """Let every packet arrive ``seconds`` later, in each direction."""
        self._call(lambda: setattr(self._rules, "delay", seconds))

    def cut(self) -> int:
        """Reset every open connection; return how many."""
        return self._call(self._cut_all)

    def cut_one(self, chance: Callable[[int], int]) -> int:
        """Reset one open connection, the one that ``chance`` names out of so many; return how many."""
        return self._call(lambda: self._cut_one(chance))

    def cut_next(
        self,
        share: float = 0.5,
        direction: Direction = "to server",
        matches: Callable[[bytes], bool] = lambda packet: len(packet) > 1,
    ) -> None:
        """Reset one connection at its next packet that matches, of which ``share`` is forwarded before.

        A packet to the server is one command, one to the client what came at once. With a share of 1
        a command is carried out and its answer is lost; with 0 it does not arrive.
        """
        self._call(lambda: setattr(self._rules, "cut", Cut(direction, share, matches)))

    def cut_at(
        self, matches: Callable[[str, Command], bool], *, nth: int = 1, is_carried_out: bool = False
    ) -> None:
        """Reset one connection at the ``nth`` command from now on that matches.

        ``matches`` gets the name that the connection has given itself, and the command. That does not arrive;
        or it ``is_carried_out``, and its answer gets lost. What stands before it, and the answers to that,
        get through.
        """
        cut = CommandCut(matches, nth, is_carried_out)
        self._call(lambda: setattr(self._rules, "command_cut", cut))

    def admit(self, connections: int | None = None) -> None:
        """Let so many more connections in and reset any further one at once; without a number let all in."""
        self._call(lambda: setattr(self._rules, "admitted", connections))

    def hold(self, *directions: Direction, new: bool = False) -> int:
        """Forward nothing more, ends of connections included, on those that are open; return how many.

        By default in both directions. Connections opened later work, unless ``new``.
        """
        held = directions or BOTH
        return self._call(lambda: self._hold(held, new))

    def resume(self) -> None:
        """Forward again, what was held back first."""
        self._call(self._resume)

    def answer(self, error: str | None, to: Callable[[Command], bool] | None = None) -> None:
        """Answer commands with an error such as ``LOADING …`` in place of the server; with none, stop that.

        ``to`` says for which commands, by default all but those that set a connection up.
        """
        chosen = to or (lambda command: command[0] not in SET_UP)
        line = None if error is None else f"-{error}\r\n".encode()
        self._call(lambda: setattr(self._rules, "error", lambda command: line if chosen(command) else None))

    def lead_to(self, url: str) -> None:
        """Let connections that are opened from now on reach another server; those that are open stay."""
        self._call(lambda: setattr(self, "_parts", urlsplit(url)))

    def _call(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self._run(call())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):  # at the proxy's end
            async with self._closed(writer):
                await self._link(reader, writer)

    @asynccontextmanager
    async def _closed(self, writer: asyncio.StreamWriter) -> AsyncIterator[None]:
        """Close a connection at the end and wait until it is closed, which its unread data may delay."""
        self._connections[writer] = cast("asyncio.Task[Any]", asyncio.current_task())
        try:
            yield
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            del self._connections[writer]

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rules = self._rules
        if rules.admitted == 0:
            rules.refused += 1
            _reset(writer)
            return
        if rules.admitted is not None:
            rules.admitted -= 1
        rules.accepted += 1
        host, port = self._parts.hostname, self._parts.port
        try:
            server = await asyncio.open_connection(host, port)
        except OSError:
            _reset(writer)
            return
        async with self._closed(server[1]):
            link = Link(rules, Pipe(reader, server[1]), Pipe(server[0], writer))
            link.hold(rules.held)
            self._links.add(link)
            try:
                await link.run()
            finally:
                self._links.discard(link)

    def _cut_all(self) -> int:
        for link in self._links:
            link.cut()
        self._rules.cuts += len(self._links)
        return len(self._links)

    def _cut_one(self, chance: Callable[[int], int]) -> int:
        links = sorted(self._links, key=id)
        if links:
            links[chance(len(links))].cut()
            self._rules.cuts += 1
        return min(1, len(links))

    def _hold(self, directions: tuple[Direction, ...], new: bool) -> int:
        for link in self._links:
            link.hold(directions)
        self._rules.held = directions if new else ()
        return len(self._links)

    def _resume(self) -> None:
        self._rules.held = ()
        for link in self._links:
            link.resume()

    async def _close(self) -> None:
        for listener in self._server.sockets:  # closing it now would lose what it has just accepted
            self._loop.remove_reader(listener.fileno())
        self._rules.admitted = 0
        # a connection that was accepted at the last moment gets its task later, and its link later still
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for writer, task in self._connections.items():
                task.cancel()
                writer.transport.abort()
            await asyncio.wait(tasks, timeout=CLOSING_SECONDS)
        self._server.close()


class Pipe:
    """One direction of a connection: what was read and is still to be written, with when it is due."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self.flows = asyncio.Event()
        self.flows.set()
        self.parser = hiredis.Reader()

    def parsed(self, data: bytes) -> Iterator[Any]:
        """Return what became complete with ``data``: commands or replies."""
        self.parser.feed(data)
        while (value := self.parser.gets()) is not False:
            yield value


class Link:
    """One connection through the proxy."""

    def __init__(self, rules: Rules, to_server: Pipe, to_client: Pipe) -> None:
        self._rules = rules
        self._pipes: dict[Direction, Pipe] = {"to server": to_server, "to client": to_client}
        #: as ``CLIENT SETNAME`` has it
        self._name = ""
        self._sent = 0
        self._replied = 0
        #: the number of the command whose answer does not get through
        self._last: int | None = None
        #: errors to be answered, each when so many commands before it have their reply
        self._errors: deque[tuple[int, bytes]] = deque()
        self._in_order = asyncio.Event()
        self._is_cut: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Forward until one side closes, in order, or the connection is cut."""
        server, client = (self._pipes[direction] for direction in BOTH)
        work = [
            self._read(server, lambda data: map(hiredis.pack_command, map(tuple, server.parsed(data)))),
            self._read(client, lambda data: iter((data,))),
            self._write(server, self._forward_command),
            self._write(client, self._forward_replies),
        ]
        tasks = [asyncio.ensure_future(each) for each in work]
        try:
            # a side that is read to its end is not a reason to end: what it has sent is still under way
            await asyncio.wait([*tasks[2:], self._is_cut], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._last is not None:  # the server was quicker: the answer is lost all the same
                self._rules.cuts += 1
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for pipe in self._pipes.values():
                pipe.writer.close()

    def cut(self) -> None:
        """Reset both sides."""
        if not self._is_cut.done():
            self._is_cut.set_result(None)
        for pipe in self._pipes.values():
            _reset(pipe.writer)

    def hold(self, directions: tuple[Direction, ...]) -> None:
        """Forward nothing more in these directions."""
        for direction in directions:
            self._pipes[direction].flows.clear()

    def resume(self) -> None:
        """Forward again in both directions."""
        for pipe in self._pipes.values():
            pipe.flows.set()

    async def _read(self, pipe: Pipe, packets: Callable[[bytes], Iterator[bytes]]) -> None:
        loop = asyncio.get_running_loop()
        data = b" "
        while data:
            try:
                data = await pipe.reader.read(READ_BYTES)
            except OSError:
                data = b""
            for packet in packets(data) if data else (b"",):
                pipe.waiting.put_nowait((loop.time() + self._rules.delay, packet))

    async def _write(self, pipe: Pipe, forward: Callable[[Pipe, bytes], Coroutine[Any, Any, bool]]) -> None:
        """Forward packets when they are due, until an empty one or a cut."""
        loop = asyncio.get_running_loop()
        while True:
            due, packet = await pipe.waiting.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            await pipe.flows.wait()
            if not packet or not await forward(pipe, packet):
                return
            try:
                await pipe.writer.drain()
            except OSError:
                return

    async def _forward_command(self, pipe: Pipe, packet: bytes) -> bool:
        while self._errors:  # a reply must not overtake the error to an earlier command
            self._in_order.clear()
            await self._in_order.wait()
        command = _command(packet)
        if command[:2] == [b"CLIENT", b"SETNAME"]:
            self._name = command[2].decode()
        if self._is_cut_before(command):
            return self._end(pipe, b"")
        error = self._rules.error(command)
        if error is not None:
            self._rules.answered += 1
            self._errors.append((self._sent, error))
            self._answer_errors()
            return True
        self._sent += 1
        return self._forward(pipe, packet, "to server")

    def _is_cut_before(self, command: Command) -> bool:
        """Say whether a command is not to arrive; take note if its answer is not to."""
        cut = self._rules.command_cut
        if cut is None or not cut.matches(self._name, command):
            return False
        cut.missing -= 1
        if cut.missing:
            return False
        self._rules.command_cut = None
        self._last = self._sent if cut.is_carried_out else None
        return not cut.is_carried_out

    async def _forward_replies(self, pipe: Pipe, packet: bytes) -> bool:
        if self._last is None:
            self._count_replies(pipe, packet)
        else:  # where one ends is seen when each byte is looked at
            for at in range(len(packet)):
                if self._replied == self._last:
                    return self._end(pipe, packet[:at])
                self._count_replies(pipe, packet[at : at + 1])
        is_whole = self._forward(pipe, packet, "to client")
        self._answer_errors()
        return is_whole

    def _count_replies(self, pipe: Pipe, data: bytes) -> None:
        replies = sum(not isinstance(reply, hiredis.PushNotification) for reply in pipe.parsed(data))
        # messages of a subscription are replies, too
        self._replied = min(self._sent, self._replied + replies)

    def _answer_errors(self) -> None:
        writer = self._pipes["to client"].writer
        while self._errors and self._errors[0][0] <= self._replied:
            writer.write(self._errors.popleft()[1])
        self._in_order.set()

    def _forward(self, pipe: Pipe, packet: bytes, direction: Direction) -> bool:
        """Write a packet, or the part that comes before a cut; say whether it was whole."""
        cut = self._rules.cut
        if cut is None or cut.direction != direction or not cut.matches(packet):
            pipe.writer.write(packet)
            return True
        self._rules.cut = None
        return self._end(pipe, packet[: int(len(packet) * cut.share)])

    def _end(self, pipe: Pipe, packet: bytes) -> bool:
        """Cut the connection when this has been written; say that no more is to come."""
        self._rules.cuts += 1
        self._last = None
        pipe.writer.write(packet)
        pipe.writer.close()  # not reset: that would take back what the other side has not read yet
        self.cut()
        return False


def _command(packet: bytes) -> Command:
    reader = hiredis.Reader()
    reader.feed(packet)
    name, *arguments = reader.gets()
    return [name.upper(), *arguments]


def _reset(writer: asyncio.StreamWriter) -> None:
    if writer.is_closing():
        return
    connection: socket.socket | None = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
    writer.transport.abort()
