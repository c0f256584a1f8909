"""Lets a script stop at one of its writes, as if Redis had refused it.

A fault of the script itself is met by no command that the script sends with ``pcall``. The deletion of a key
and the write after it are one place: the scripts replace a record by both, which takes less memory than any
other way.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from redis.connection import Connection
from redis.exceptions import RedisError

from broker_config.refusals import RefusalParser, RefusedError
from broker_config.scripts import Script, ScriptCall, send_all

#: holds which write of the next script is refused, with which error, and whether the later ones are, too
_KEY = "sim:refusal"
#: is put before a script
_LUA = f"""
local server, writes = redis, 0
local refusal = server.call('HMGET', '{_KEY}', 'place', 'error', 'lasts')
local place = tonumber(refusal[1])
local READS = {{}}
local names = 'HGET HMGET HEXISTS HKEYS HLEN HGETALL ZRANGE ZSCORE ZMSCORE ZCARD ZRANK LLEN LINDEX LRANGE '
for name in string.gmatch(names .. 'GET TTL EXISTS TYPE PUBLISH XLEN XRANGE', '%S+') do READS[name] = true end
local lasts, has_deleted = refusal[3] == '1', false
local function is_refused(command)
  if READS[command] then return false end
  local is_one = has_deleted
  has_deleted = command == 'DEL'
  if is_one then return false end
  writes = writes + 1
  local is_it = writes == place or writes > place and lasts
  if is_it then server.call('HSET', '{_KEY}', 'met', '1') end
  return is_it
end
local redis = {{
  call = function(command, ...)
    if is_refused(command) then error({{err = refusal[2]}}) end
    return server.call(command, ...)
  end,
  pcall = function(command, ...)
    if lasts and is_refused(command) then return {{err = refusal[2]}} end
    return server.pcall(command, ...)
  end,
}}
"""
Exchange = Callable[[Connection, Sequence[ScriptCall[Any]]], list[Any]]


@dataclass(eq=False)
class Refusal:
    """The refusal of one write of a script, or of a whole script if ``place`` is 0."""

    text: str
    #: the number of the write
    place: int
    #: whether all later writes of the script are refused, too
    lasts: bool
    #: whether the program sends the script again, as it is
    is_sent_again: bool
    #: how many scripts run before
    before: int
    #: the script that was refused, or those of the trip that has failed
    met: Sequence[ScriptCall[Any]] = ()
    on_met: Callable[[], object] = lambda: None

    @property
    def words(self) -> set[str]:
        """The keys and arguments of the script, the ids of its calls among them."""
        found = [word for one in self.met for word in (*one.keys, *one.arguments)]
        return {one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in found}

    def exchange(
        self, connection: Connection, script_calls: Sequence[ScriptCall[Any]], exchange: Exchange
    ) -> list[Any]:
        """Run scripts in one trip, the one that is refused as far as it comes."""
        number, self.before = self.before, self.before - len(script_calls)
        if self.met or not 0 <= number < len(script_calls):
            return exchange(connection, script_calls)
        try:
            return self._refused(connection, script_calls, number, exchange)
        except RedisError as error:
            if not self.met or not (self.is_sent_again and isinstance(error, RefusedError)):
                raise
        return exchange(connection, script_calls)

    def _refused(
        self, connection: Connection, script_calls: Sequence[ScriptCall[Any]], number: int, exchange: Exchange
    ) -> list[Any]:
        refused = script_calls[number]
        if not self.place:
            self._note([refused])
            raise RefusalParser.parse_error(self.text)
        wanted = ("place", self.place, "error", self.text, "lasts", int(self.lasts), "met", "")
        send_all(connection, [("HSET", _KEY, *wanted)])
        stopped = replace(refused, script=_stopping(refused.script))
        try:
            return exchange(connection, [*script_calls[:number], stopped, *script_calls[number + 1 :]])
        finally:
            if send_all(connection, [("HGET", _KEY, "met")]) == [b"1"]:
                self._note([refused])

    def _note(self, refused: Sequence[ScriptCall[Any]]) -> None:
        self.met = refused
        self.on_met()


@dataclass(eq=False)
class Failure(Refusal):
    """Scripts that fail by themselves: nothing is refused."""

    text: str = ""
    place: int = 0
    lasts: bool = False
    is_sent_again: bool = False
    before: int = 0

    def exchange(
        self, connection: Connection, script_calls: Sequence[ScriptCall[Any]], exchange: Exchange
    ) -> list[Any]:
        """Run scripts in one trip; note them if they fail."""
        try:
            return exchange(connection, script_calls)
        except RedisError:
            self._note(script_calls)
            raise


_current: list[Refusal] = []


@contextmanager
def refusing(refusal: Refusal, on_met: Callable[[], object]) -> Iterator[None]:
    """Let a script in the block stop; ``on_met`` is called when it has."""
    refusal.on_met = on_met
    _current.append(refusal)
    try:
        yield
    finally:
        _current.clear()


def was_refused() -> bool:
    """Whether a script of the step that is being taken has stopped, or failed."""
    return any(refusal.met for refusal in _current)


def exchange_or_refuse(
    connection: Connection, script_calls: Sequence[ScriptCall[Any]], exchange: Exchange
) -> list[Any]:
    """Run scripts in one trip, unless one of them is refused."""
    for refusal in _current:
        return refusal.exchange(connection, script_calls, exchange)
    return exchange(connection, script_calls)


@cache
def _stopping(script: Script) -> Script:
    """Return a script that stops where the refusal says."""
    text = _LUA + script.text
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
