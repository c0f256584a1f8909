"""The commands for calls that wait for an approval: list, approve and deny them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from goondan_tasks.cli.calls import CALL_COLUMNS, whole_id
from goondan_tasks.cli.options import OfAgent, option, parse_object
from goondan_tasks.cli.output import Columns, listing
from goondan_tasks.cli.selection import Selection, confirmed
from goondan_tasks.cli.session import (
    Choice,
    Session,
    login,
    require_agent,
    takes_choice,
    takes_client,
    takes_filter,
)
from goondan_tasks.client import Client
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.ledger.call_filter import CallFilter
from goondan_tasks.ledger.record import CallRecord

_NONE = "No call waits for an approval."
By = Annotated[str | None, option("NAME", "The person who decides. Default: your login name.")]
Args = Annotated[
    Any, option("JSON", "Run the call with these: JSON text, @FILE, or - for stdin.", parser=parse_object)
]


@takes_client
@takes_filter("tool", "instance")
def list_approvals(session: Session, client: Client, agent: OfAgent = None, *, wanted: CallFilter) -> None:
    """List the calls that wait for an approval, with their arguments; `goondan result ID` shows one."""
    output = session.output
    columns: Columns[CallRecord] = {
        "since": lambda one: output.time(one.suspended_at),
        "until": lambda one: output.time(one.expires_at),
        **CALL_COLUMNS,
        "arguments": lambda one: json.dumps(one.call.args, ensure_ascii=False),
        "id": lambda one: output.call_id(one.id),
    }
    answer = listing(
        _waiting(client, agent, wanted),
        columns,
        wire=lambda one: {**one.to_wire(), "args": one.call.args, "idempotent": one.is_idempotent},
        none=_NONE,
        unbroken="id",
    )
    output.write(answer)


@takes_client
@takes_choice("tool", "instance")
def approve(session: Session, client: Client, *, choice: Choice, args: Args = None, by: By = None) -> None:
    """Approve calls that wait for an approval: they run. A filter shows what it selects, and asks.

    With --args the one call runs with other arguments, which its agent is told.
    """
    if args is not None and len(choice.ids) != 1:
        raise typer.BadParameter("--args goes with the id of one call.")
    deciding = _Deciding(session, client, "approve", login() if by is None else by)
    deciding.decide(
        choice,
        lambda call_id: client.approve(call_id, deciding.by, args),
        lambda some: client.approve_many(some, deciding.by),
    )


@takes_client
@takes_choice("tool", "instance")
def deny(
    session: Session,
    client: Client,
    *,
    choice: Choice,
    reason: Annotated[str, option("TEXT", "Why the calls are denied.")] = "",
    by: By = None,
) -> None:
    """Deny calls that wait for an approval: they end with E_APPROVAL_DENIED, a reason and a name.

    A filter shows what it selects, and asks.
    """
    deciding = _Deciding(session, client, "deny", login() if by is None else by)
    deciding.decide(
        choice,
        lambda call_id: client.deny(call_id, reason, deciding.by),
        lambda some: client.deny_many(some, reason, deciding.by),
    )


@dataclass(frozen=True, slots=True)
class _Deciding:
    """A decision about calls, in the name of a person."""

    session: Session
    client: Client
    decision: Literal["approve", "deny"]
    by: str

    @property
    def done(self) -> str:
        return "approved" if self.decision == "approve" else "denied"

    def decide(
        self, choice: Choice, one: Callable[[str], object], many: Callable[[list[str]], list[str]]
    ) -> None:
        """Decide about the calls that are named; or about those that are shown, and none that come later."""
        choice.require_no_preview()
        if choice.ids:
            return self._each(choice.ids, one)
        found = Selection(_waiting(self.client, choice.agent, choice.wanted))
        if not confirmed(self.session, choice, found, self.decision.capitalize(), none=_NONE):
            return None
        decided = many(found.ids)
        missed = len(found.ids) - len(decided)
        text = f"{self.done} {len(decided)}" + (f"; {missed} waited no longer" if missed else "")
        return self.session.output.give(self._document(decided), text)

    def _each(self, ids: Sequence[str], act: Callable[[str], object]) -> None:
        """Decide about calls up to the first that is refused."""
        output, decided = self.session.output, [whole_id(self.client, call_id) for call_id in ids]
        for call_id in decided:
            act(call_id)
            if not output.as_json:
                output.print(f"{self.done} {call_id}")
        if output.as_json:
            output.document(self._document(decided))

    def _document(self, call_ids: list[str]) -> list[JsonObject]:
        return [{"id": call_id, "decision": self.decision, "by": self.by} for call_id in call_ids]


def _waiting(client: Client, agent: str | None, wanted: CallFilter) -> list[CallRecord]:
    require_agent(client, agent)
    return client.approvals(agent, **wanted)
