"""The forms of requests and answers that all routes share: bodies, queries, pages and errors."""

import base64
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Annotated, Any, ClassVar, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from broker_config import serializer
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.contract.messages import (
    LONGEST_INSTANCE_KEY,
    LONGEST_KEEP_SECONDS,
    JsonObject,
    ToolCallError,
    WireModel,
)
from goondan_tasks.contract.moments import LONGEST_DELAY_SECONDS
from goondan_tasks.ledger.call_filter import CallFilter, CallStatus
from goondan_web.callers import Caller

#: the longest wait for a result, in seconds
LONGEST_WAIT = 60
#: the most items of a page, and how many one has by default
MOST_ITEMS, USUAL_ITEMS = 200, 50

Row = TypeVar("Row")
Item = TypeVar("Item", bound=BaseModel)
Name = Annotated[str, Field(min_length=1, max_length=200)]
InstanceName = Annotated[str, Field(min_length=1, max_length=LONGEST_INSTANCE_KEY)]


class Sent(BaseModel):
    """What a client sends as a body: camelCase, and nothing that is unknown or of another type."""

    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, extra="forbid", strict=True, allow_inf_nan=False
    )


class Omissible(Sent):
    """A body that a client may leave out: its fields only add to what is asked."""


class Begun(Sent):
    """What is asked of a Turn, and of a call."""

    #: the fields that are no keyword fields of the client's method
    passed_alone: ClassVar[frozenset[str]] = frozenset()

    instance_key: InstanceName | None = Field(None, description="The conversation. Default: `default`.")
    not_before: str | None = Field(None, description="ISO 8601: it begins at this time.")
    delay: float | None = Field(
        None, ge=0, le=LONGEST_DELAY_SECONDS, description="In seconds: it begins so much later."
    )
    keep: float | None = Field(
        None,
        gt=0,
        le=LONGEST_KEEP_SECONDS,
        description="For how many seconds after the end its events can be followed; `null`: they cannot.",
    )
    auth: JsonObject | None = Field(None, description="For whom tools act, as tools and middlewares see it.")
    origin: JsonObject | None = None
    correlation_id: str | None = None

    def fields(self, caller: Caller) -> dict[str, Any]:
        """Return the fields that are given, by the client's names, and the ``auth`` of the caller."""
        auth = caller.auth_for(self.auth)
        return self.model_dump(exclude=set(self.passed_alone), exclude_none=True) | {"auth": auth}


class Query(BaseModel):
    """The parameters behind the ``?``, which are text, and become what their fields need."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, extra="forbid", allow_inf_nan=False)


class Listing(Query):
    """Which part of a list to return."""

    limit: int = Field(USUAL_ITEMS, ge=1, le=MOST_ITEMS, description="The most items of the page.")
    cursor: str | None = Field(None, description="The nextCursor of the page before.")


class AgentListing(Listing):
    """Which part of a list to return, of one agent or of all."""

    agent: Name | None = Field(None, description="Only what belongs to this agent.")


class CallListing(AgentListing):
    """Which part of the calls to return, and which of them are meant."""

    tool: str | None = Field(None, min_length=1, max_length=1_000, description="A glob, such as `bash__*`.")
    instance_key: InstanceName | None = Field(None, description="Only those of this conversation.")
    status: CallStatus | None = Field(None, description="A status, a state or an outcome.")
    code: Name | None = Field(None, description="The code of the error.")
    text: str | None = Field(
        None, min_length=1, max_length=1_000, description="Text in the message of the error, in any case."
    )
    subject: Name | None = Field(None, description="A user or tenant: a value of `auth.subjects`.")
    fingerprint: Name | None = Field(None, description="The kind of the failure, from `/v1/failures`.")
    older_than: float | None = Field(
        None, ge=0, description="In seconds since the call was queued, or has ended with an error."
    )
    newer_than: float | None = Field(None, ge=0, description="The same, at most.")

    @property
    def wanted(self) -> CallFilter:
        """The filter of the client."""
        given = self.model_dump(exclude={"limit", "cursor", "agent", "instance_key"})
        return cast("CallFilter", {**given, "instance": self.instance_key})


class Waiting(Query):
    """How long to wait for the end."""

    wait: float = Field(
        0, ge=0, le=LONGEST_WAIT, description="Wait up to so many seconds for the end, then answer."
    )


class Page(WireModel, Generic[Item]):
    """A part of a list. ``nextCursor`` leads to the next one, and is null in the last one."""

    items: list[Item]
    next_cursor: str | None = None


class Found(Page[Item], Generic[Item]):
    """A part of what a search finds. With ``nextCursor`` it goes on, also if this part is empty."""

    #: how many were looked at for this part, and how many there are
    searched: int
    total: int


class Done(WireModel):
    """What was done, where nothing else is to be said."""

    id: str


class ErrorAnswer(WireModel):
    """Why there is no other answer. ``error.code`` names the page that ``error.helpUrl`` leads to."""

    error: ToolCallError


def page_of(
    rows: Iterable[Row],
    asked: Listing,
    place: Callable[[Row], Sequence[str | float]],
    shown: Callable[[Row], Item],
) -> Page[Item]:
    """Return the part of a list that was asked for, in the order of ``place``, which differs for each row.

    A cursor is the place of the last row before it, so rows that come or go meanwhile move no others.

    Raises:
        ToolInputValidationError: the cursor is not one of these.
    """
    after = None if asked.cursor is None else _place(asked.cursor)
    placed = sorted(((list(place(row)), row) for row in rows), key=lambda pair: pair[0])
    try:
        later = (pair for pair in placed if after is None or pair[0] > after)
        found = list(islice(later, asked.limit + 1))
    except TypeError as error:
        raise _not_a_cursor() from error
    shown_rows = found[: asked.limit]
    following = _cursor(shown_rows[-1][0]) if len(found) > asked.limit else None
    return Page[Any](items=[shown(row) for _, row in shown_rows], next_cursor=following)


def _cursor(place: Sequence[Any]) -> str:
    return base64.urlsafe_b64encode(serializer.encode(place, repairs=True)).decode().rstrip("=")


def _place(cursor: str) -> list[Any]:
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        place = serializer.decode(base64.b64decode(padded, altchars=b"-_", validate=True))
    except ValueError as error:
        raise _not_a_cursor() from error
    if not isinstance(place, list) or not place:
        raise _not_a_cursor()
    return place


def _not_a_cursor() -> ToolInputValidationError:
    return ToolInputValidationError(
        "cursor: this list has no such cursor.",
        suggestion="Send the nextCursor of the page before, unchanged.",
    )
