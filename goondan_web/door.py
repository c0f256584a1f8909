"""A door: routes of the HTTP application that are guarded in one way, with what they need while it runs."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum

from starlette.responses import Response
from starlette.routing import Route

from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle
from goondan_tasks.client import Client
from goondan_tasks.contract.errors import GoondanError

#: the limit of a request's body where a door does not say otherwise
MAX_BODY_BYTES = 65_536
#: of the conversation that some clients send whole each time, although only its last message is read
MAX_HISTORY_BYTES = 16 * 1024 * 1024


class Access(Enum):
    """Who may pass a door. Bounds of size and time apply to everyone."""

    #: who shows a token; as long as there is none, only this machine, and no other address is served
    TOKEN = "token"  # noqa: S105 - not a password
    #: the same, but as long as there is no token, other machines are served too
    TOKEN_IF_SET = "token-if-set"  # noqa: S105 - not a password
    #: everyone: requests come from other servers, and the door itself checks who sends them
    OWN = "own"


async def _nothing() -> None:
    """Do nothing at the end: requests end by themselves."""


@dataclass(frozen=True, slots=True)
class Door:
    """Routes that are reached in one way.

    A program whose paths differ in ``access`` opens several doors. Routes raise errors of the tree; the
    application answers with them.
    """

    #: as ``--door`` and the log name it
    name: str
    #: the address for people, below that of the server
    path: str
    routes: Sequence[Route]
    access: Access
    #: a larger body is answered with 413
    max_body_bytes: int = MAX_BODY_BYTES
    #: what runs on the server's event loop as long as the server does
    lifespan: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    #: makes the door answer its pending requests, before connections are closed
    end: Callable[[], Awaitable[None]] = _nothing
    #: whether machines ask all the time: the log shows its requests at the level debug only
    is_polled: bool = False
    #: whether pages of the origins in ``GOONDAN_HTTP_ORIGINS`` may ask, too
    is_for_pages: bool = False
    #: whether a token may also be the password of HTTP's basic authentication, as browsers send it
    takes_passwords: bool = False
    #: makes the answers of the guard, if the clients of the door know another form than ours
    error_form: Callable[[GoondanError, str], Response] | None = None


@dataclass(frozen=True, slots=True)
class DoorContext:
    """What a door may use."""

    settings: Settings
    client: Client
    #: loads the bundle; raises ConfigError
    bundle: Callable[[], Bundle]
    #: tells the operator something, once
    note: Callable[[str], None]
    #: of the door ``mcp``: whose tools are served, and the instance of every call
    agents: Sequence[str] = ()
    instance: str | None = None
