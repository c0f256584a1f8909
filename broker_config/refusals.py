"""What the errors of Redis mean: which ones pass, which are a call's own fault, and what to do about them.

A server that refuses commands for a while (a replica after a failover, a full one, one that loads its data)
counts as away. The connections of this package raise :class:`RefusedError` then, a connection error: whatever
waits out an outage waits for the end of a refusal, too.
"""

# redis-py leaves the methods of its parsers untyped
# mypy: disable-error-code="no-untyped-call"

import re
from urllib.parse import urlsplit

from redis._parsers import _HiredisParser
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from broker_config.settings import Settings, hidden_password

#: codes of a server that is no master, or no longer: a new connection may reach another one
_DEMOTED = frozenset({"READONLY", "MASTERDOWN", "UNBLOCKED"})
#: codes of refusals that pass without a change of the command
_PASSING = _DEMOTED | {
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MISCONF",
    "NOREPLICAS",
    "OOM",
    "TRYAGAIN",
}
#: codes of a Redis Cluster, which does not run scripts over the keys of several slots
_OF_A_CLUSTER = frozenset({"ASK", "CROSSSLOT", "MOVED"})


class RefusedError(RedisConnectionError):
    """Redis refuses a command for now; its text begins with the code."""


class MasterUnknownError(RedisConnectionError):
    """No Sentinel can name the master, and none will until a setting is changed."""


#: what an old Redis puts before the error of a command in a script
_IN_A_SCRIPT = re.compile(r"(?:ERR )?Error running script \(.*?\): (?:@user_script: ?\d+: )*-?")

#: what redis-py puts before the error of a command in a pipeline, the command itself included
_IN_A_PIPELINE = re.compile(r"Command # \d+ \(.*?\) of pipeline caused error: ", re.DOTALL)

#: what precedes the reason why a transaction was discarded
_DISCARDED = re.compile(r"(?:EXECABORT )?Transaction discarded because of: ")

#: matches errors of a script's own code, or of a key that has another type
_FAULT = re.compile(r"user_script|^WRONGTYPE")

#: what to do, by pattern of the error; redis-py removes the codes of some errors
_CREDENTIALS = "Correct user and password in GOONDAN_REDIS_URL: redis://user:password@host:6379/0."
#: what to do instead of using a Redis Cluster
NO_CLUSTER = (
    "Use a server that is not part of a Cluster, with replicas and Sentinels if it must fail over: see "
    "docs/how-to/when-one-redis-is-not-enough.md."
)
_REMEDIES = (
    (
        "READONLY|read only replica",
        "Use the URL of the master, or one that follows failovers: sentinel://host1,host2,host3/service.",
    ),
    ("^the Sentinel at", "Correct GOONDAN_REDIS_URL: sentinel://user:password@host1,host2,host3/service/0."),
    ("MASTERDOWN|Link with MASTER is down", "Use the URL of the master, or wait for the replica."),
    ("NOREPLICAS|good replicas", "Bring its replicas back, or lower min-replicas-to-write."),
    ("MISCONF|RDB snapshots", "Look at the server's log and the space on its disk: it cannot save its data."),
    ("WAITAOF", "Use Redis or Valkey 7.2 or newer with `appendonly yes`, or unset GOONDAN_WAIT_AOF."),
    ("BUSY", "A script runs there without end: `redis-cli SCRIPT KILL` ends it."),
    ("OOM|maxmemory", "Raise maxmemory, or lower GOONDAN_RESULT_TTL_SECONDS: the server is full."),
    ("LOADING|loading the dataset", "Wait until it has read its data from disk."),
    ("CLUSTERDOWN|Hash slot|^MOVED|^ASK |CROSSSLOT", NO_CLUSTER),
    ("NOAUTH|WRONGPASS|Authentication|authenticated|password", _CREDENTIALS),
    (
        "NOPERM|has no permissions",
        "Give the user the rights that docs/how-to/deploy.md lists.",
    ),
    ("max number of clients", "Raise maxclients, or end clients: `redis-cli CLIENT LIST` shows them."),
)


class RefusalParser(_HiredisParser):
    """Parses answers; a refusal that passes is a :class:`RefusedError`."""

    @classmethod
    def parse_error(cls, response: str) -> RedisError:
        """Return the exception for an error's text (redis/_parsers/base.py ``parse_error``)."""
        code = code_of(response)
        if code in _PASSING:
            return RefusedError(refusal_text(response))
        if code in _OF_A_CLUSTER:
            return ResponseError(response)
        error: RedisError = super().parse_error(response)
        return error


def code_of(error: RedisError | str) -> str:
    """Return the code of an error, such as ``OOM``; an empty string if it has none.

    For the error of a command in a script or a transaction, return the code of that command.
    """
    if isinstance(error, RedisError) and error.status_code not in {None, "ERR", "EXECABORT"}:
        return str(error.status_code)
    text = _DISCARDED.sub("", refusal_text(error))
    code = text.partition(" ")[0]
    return code if code.isupper() and code.isalpha() else ""


def is_demotion(error: RedisError) -> bool:
    """Return whether the server is no longer a master that accepts writes."""
    return code_of(error) in _DEMOTED


def refusal_text(error: RedisError | str) -> str:
    """Return the text of an error, without the place in the script or pipeline where it occurred."""
    return _IN_A_SCRIPT.sub("", _IN_A_PIPELINE.sub("", str(error)))


_NAMED = "Start the Redis that GOONDAN_REDIS_URL or --redis-url names, or correct the URL."
#: the URL that `goondan dev` prints is pasted into terminals, where it outlives its Redis
_OF_DEV = (
    " If the URL is that of a `goondan dev` which has ended: unset GOONDAN_REDIS_URL, start dev again, and "
    "paste the line that it prints."
)


def remedy_of(error: RedisError, url: str = "") -> str | None:
    """Return what to do about an error, ``None`` if that is not known.

    With the server's ``url``, also say what to do if it cannot be reached, unless that is the default URL.
    """
    known = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, str(error))), None)
    is_named = url not in {"", Settings.model_fields["redis_url"].default}
    is_away = isinstance(error, RedisConnectionError | RedisTimeoutError) and known in {None, _CREDENTIALS}
    if not is_named or not is_away:
        return known
    is_local = urlsplit(url).hostname in {"127.0.0.1", "localhost", "::1"}
    return (known or _NAMED) + (_OF_DEV if is_local else "")


def is_script_fault(answer: object) -> bool:
    """Return whether a script failed because of its keys or arguments, so that it would fail again."""
    if not isinstance(answer, ResponseError) or remedy_of(answer) is not None:
        return False
    return bool(_FAULT.search(_IN_A_PIPELINE.sub("", str(answer))))


def reason_unreachable(url: str, error: RedisError) -> str:
    """Return in one line why the server at ``url`` cannot be used; its password is hidden."""
    place, said = hidden_password(url), "; ".join([refusal_text(error), *getattr(error, "__notes__", ())])
    if isinstance(error, AuthenticationError):
        return f"Redis at {place} refuses the credentials: {said}"
    if isinstance(error, RefusedError):
        return f"Redis at {place} accepts no commands now: {said}"
    if isinstance(error, ResponseError):
        return f"Redis at {place} answers with an error: {said}"
    return f"Redis at {place} cannot be reached: {said}"
