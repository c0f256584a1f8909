"""Wrong arguments of the client's methods: an error with a code, before anything is sent."""

import asyncio
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker_config.settings import Settings
from goondan_tasks.client import AsyncClient, Client, PendingCall
from goondan_tasks.contract.errors import GoondanError, ToolInputValidationError, WaitTimeout
from tests.unit.goondan_tasks.client.test_async_client import NOT_ASYNC, public

#: nothing listens there: a method that asks Redis fails with another error
NOWHERE = Settings.load(redis_url="redis://127.0.0.1:1/0", connect_timeout_seconds=0.1)

DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]

#: no argument of the client may be one of these
NEVER = (object(), DEEP, {"a": 1}, b"text", math.nan, 2**5_000)
TEXT = (*NEVER, 5, True, 1.5, ["a"])
NAME = (*TEXT, "", "\ud800", "x" * 1_000_001)
SECONDS = (*NEVER, "5", True, [1])
COUNT = (*NEVER, "5", True, -1, 1.5, math.inf)
FLAG = (*NEVER, "no", 0, 1)
FILTER = {
    "tool": (*TEXT, "\ud800", "x" * 2_000),
    "instance": (*TEXT, "\ud800"),
    "status": (*TEXT, "nope", "", "\ud800"),
    "older_than": SECONDS,
    "newer_than": SECONDS,
}
EVENT = dict.fromkeys(("instance_key", "event_type", "event_id", "correlation_id"), (*TEXT, "\ud800"))

#: by parameter: values that no method takes
WRONG: dict[str, tuple[Any, ...]] = {
    "agent": NAME,
    "worker": NAME,
    "call_id": TEXT,
    "call_ids": (*NEVER, 5, "an id", [5], [None]),
    "name": (*TEXT, "\ud800"),
    "token": TEXT,
    "by": (*TEXT, "x" * 201, "two\nlines"),
    "reason": (*TEXT, "\ud800"),
    "instance_key": (*TEXT, "\ud800"),
    "turn_id": (*TEXT, "\ud800"),
    "correlation_id": (*TEXT, "\ud800"),
    "timeout": SECONDS,
    "older_than_seconds": SECONDS,
    "limit": (*COUNT, 0),
    "between": (*NEVER, 5, "ab", (1,), (0, -1), (0, 1.5), (0, 10**15)),
    "days": (*COUNT, 0, 401),
    "hours": (*COUNT, 49),
    "offset": COUNT,
    "dry_run": FLAG,
    "again": FLAG,
    "unlisted": FLAG,
    "is_async": FLAG,
    "cancel_on_close": FLAG,
    "watch": (*NEVER[:-1], "text"),
    "received": (*NEVER, None, "an id"),
    "failed": (*NEVER, None, 5),
    **FILTER,
}
#: what is valid for the other parameters
VALID: dict[str, Any] = {
    "agent": "coder",
    "call_id": "an-id",
    "call_ids": ["an-id"],
    "name": "a-trace",
    "token": "a-token",
    "instance_key": "default",
    "older_than_seconds": 60.0,
    "received": None,
    "failed": "an-id",
    "error": "no",
    "output": 1,
}
#: these answer by results, and are tested with them
BY_RESULT = {"submit", "submit_many", "start_call", "connect", "close", "call"}


def arguments() -> Iterator[Any]:
    """Yield each method of the client with each of its parameters that may be wrong."""
    methods = (name for name in public(Client) - NOT_ASYNC - BY_RESULT if callable(getattr(Client, name)))
    for name in sorted(methods):
        parameters = inspect.signature(getattr(Client, name)).parameters.values()
        required = [p.name for p in parameters if p.default is p.empty and p.name not in {"self", "args"}]
        keywords: dict[str, Any] = {}
        for parameter in parameters:
            if parameter.kind is parameter.VAR_KEYWORD:
                keywords |= FILTER if parameter.name == "wanted" else EVENT
            elif parameter.name in WRONG:
                keywords[parameter.name] = WRONG[parameter.name]
        needed = {one: VALID[one] for one in required if one in VALID}
        for keyword, values in keywords.items():
            yield pytest.param(name, needed, keyword, values, id=f"{name}-{keyword}")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(NOWHERE) as client:
        yield client


def refused(method: Callable[..., Any], **arguments: Any) -> GoondanError:
    with pytest.raises(ToolInputValidationError) as raised:
        answer = method(**arguments)
        if inspect.isawaitable(answer):
            asyncio.run(_awaited(answer))
    return raised.value


async def _awaited(answer: Any) -> Any:
    return await answer


@pytest.mark.parametrize(("name", "needed", "keyword", "values"), list(arguments()))
def test_wrong_argument_is_refused_before_asking_redis(
    client: Client, name: str, needed: dict[str, Any], keyword: str, values: tuple[Any, ...]
) -> None:
    for value in values:
        error = refused(getattr(client, name), **{**needed, keyword: value})
        assert len(error.message) < 500
        assert error.message.isprintable()


@pytest.mark.parametrize("value", SECONDS)
def test_no_wait_accepts_invalid_seconds(client: Client, value: Any) -> None:
    call: PendingCall = client.expect("an-id", lambda _: "queued")
    refused(call.result, timeout=value)
    refused(call.wait, timeout=value)
    refused(client.call, agent="coder", tool="t__x", timeout=value)
    refused(client.turn("coder").step, timeout=value)
    refused(AsyncClient(client).call, agent="coder", tool="t__x", timeout=value)
    refused(AsyncClient(client).receive, agent="coder", timeout=value)


@pytest.mark.parametrize("seconds", [-1, -math.inf, 0])
def test_wait_below_zero_seconds_is_over_at_once(client: Client, seconds: float) -> None:
    call: PendingCall = client.expect("an-id", lambda _: "queued")
    with pytest.raises(WaitTimeout):
        call.result(seconds)
