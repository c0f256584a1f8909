"""Commands for the tokens of those who use ``goondan serve``."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Annotated

import typer

from broker_config.connections import connect
from broker_config.keys import Keys
from goondan_tasks.cli.options import argument, option, parse_end
from goondan_tasks.cli.output import Columns, listing
from goondan_tasks.cli.session import Session, require_broker, takes_session
from goondan_tasks.client.known_agents import broker_errors
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.messages import JsonObject, epoch_milliseconds, iso_time, wall_clock
from goondan_tasks.contract.wording import closest
from goondan_tasks.fleet.http_tokens import (
    HttpToken,
    ListedToken,
    TokenStore,
    digest_of,
    new_token,
    require_name,
    require_scope,
    require_user,
)

_NONE = "There are no tokens in Redis: add one with `goondan tokens add NAME --scope read`."
_SHOWN_ONCE = "This is the only time that the token is shown."

Name = Annotated[str, argument("NAME", "The name of the token.")]


@takes_session
def add(
    session: Session,
    name: Name,
    scope: Annotated[
        list[str],
        option("SCOPE", "What it may do: call:AGENT, call:*, read, approve or admin; repeatable."),
    ],
    user: Annotated[
        str | None, option("USER", "The user of the calls made with it: their auth.subjects.user.")
    ] = None,
    expires: Annotated[
        datetime | None,
        option(
            "TIME",
            "When it ends: in 90d, 12h, or at 2026-12-01T09:00 (local). Default: never.",
            parser=parse_end,
        ),
    ] = None,
) -> None:
    """Add a token for HTTP, and print it; only its hash is kept, so it cannot be shown again.

    Servers that run know it within a second.
    """
    scopes = tuple(dict.fromkeys(_checked(one, require_scope) for one in scope))
    text = new_token()
    token = HttpToken(
        name=_checked(name, require_name),
        digest=digest_of(text.encode()),
        scopes=scopes,
        user=None if user is None else _checked(user, require_user),
        created_at=iso_time(wall_clock()),
        expires_at=None if expires is None else iso_time(expires.timestamp() * 1000),
    )
    with _store(session) as store:
        if not store.add(token):
            raise ConfigError(
                f"There is a token {name!r} already.",
                suggestion=f"Choose another name, or run `goondan tokens revoke {name}` first.",
            )
    if not session.output.as_json:
        session.output.note(_SHOWN_ONCE)
    session.output.give({**_facts(token), "token": text}, text)


@takes_session
def list_tokens(session: Session) -> None:
    """List the tokens in Redis; the tokens themselves are not known. Last use is to the minute."""
    now, output = wall_clock(), session.output
    with _store(session) as store:
        found = store.listed()

    def expiry(one: ListedToken) -> str | None:
        end = one.token.expires_at
        if end is None:
            return None
        return "expired" if one.token.has_expired(now) else output.time(epoch_milliseconds(end))

    columns: Columns[ListedToken] = {
        "name": lambda one: one.token.name,
        "scopes": lambda one: ", ".join(one.token.scopes),
        "user": lambda one: one.token.user,
        "created": lambda one: one.token.created_at and output.time(epoch_milliseconds(one.token.created_at)),
        "expires": expiry,
        "last used": lambda one: output.time(one.last_used) if one.last_used else None,
    }
    answer = listing(found, columns, wire=_listed, none=_NONE, unbroken="name", spare={"user", "created"})
    output.give(answer.document, answer.content, *answer.notes)


@takes_session
def revoke(session: Session, name: Name) -> None:
    """Revoke a token: it opens nothing more, at the latest five seconds later."""
    with _store(session) as store:
        if not store.revoke(name):
            meant = closest(name, [one.name for one in store.tokens()])
            raise ConfigError(
                f"There is no token {name!r} in Redis.",
                suggestion="Run `goondan tokens list`." if meant is None else f"Did you mean {meant}?",
            )
    session.output.give({"revoked": name}, f"{name} is revoked")


@contextlib.contextmanager
def _store(session: Session) -> Iterator[TokenStore]:
    settings = session.settings
    require_broker(settings)
    with connect(settings.redis_url, name="goondan-tokens") as redis, broker_errors(settings.redis_url):
        yield TokenStore(redis, Keys(settings.namespace))


def _checked(text: str, check: Callable[[str], str]) -> str:
    try:
        return check(text)
    except ValueError as error:
        fault = str(error)
        raise typer.BadParameter(f"{text!r} {fault if fault.endswith('?') else f'{fault}.'}") from error


def _facts(token: HttpToken) -> JsonObject:
    return {key: value for key, value in token.to_wire().items() if key not in {"v", "digest"}}


def _listed(one: ListedToken) -> JsonObject:
    used = {"lastUsedAt": iso_time(one.last_used)} if one.last_used else {}
    return {**_facts(one.token), **used}
