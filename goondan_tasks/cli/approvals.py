"""The commands for calls that wait for an approval: list, approve and deny them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from goondan_tasks.cli.calls import CALL_COLUMNS, whole_id
from goondan_tasks.cli.options import (
    All,
    DryRun,
    Ids,
    OfAgent,
    OfInstance,
    OfTool,
    Yes,
    option,
    parse_object,
)
from goondan_tasks.cli.output import Columns, listing
from goondan_tasks.cli.selection import Selection, require_choice
from goondan_tasks.cli.session import Session, login, require_agent, takes_client
from goondan_tasks.client import Client
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.wording import counted
from goondan_tasks.ledger.call_filter import CallFilter
from goondan_tasks.ledger.record import CallRecord

By = Annotated[str | None, option("NAME", "The person who decides. Default: your login name.")]
Args = Annotated[
    Any, option("JSON", "Run the call with these: JSON text, @FILE, or - for stdin.", parser=parse_object)
]


@takes_client
def list_approvals(
    session: Session,
    client: Client,
    agent: OfAgent = None,
    tool: OfTool = None,
    instance: OfInstance = None,
) -> None:
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
        _waiting(client, agent, CallFilter(tool=tool, instance=instance)),
        columns,
        wire=lambda one: {**one.to_wire(), "args": one.call.args, "idempotent": one.is_idempotent},
        none="No call waits for an approval.",
        unbroken="id",
    )
    output.write(answer)


@takes_client
def approve(
    session: Session,
    client: Client,
    ids: Ids = None,
    args: Args = None,
    agent: OfAgent = None,
    tool: OfTool = None,
    instance: OfInstance = None,
    everything: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    by: By = None,
) -> None:
    """Approve calls that wait for an approval: they run. A filter shows what it selects, and asks.

    With --args the one call runs with other arguments, which its agent is told.
    """
    wanted = CallFilter(tool=tool, instance=instance)
    deciding = _Deciding(session, client, "approve", login() if by is None else by)
    deciding.require_choice(ids, agent, wanted, everything=everything, dry_run=dry_run)
    if args is not None and len(ids or ()) != 1:
        raise typer.BadParameter("--args goes with the id of one call.")
    if ids:
        return deciding.each(ids, lambda call_id: client.approve(call_id, deciding.by, args))
    found = _waiting(client, agent, wanted)
    return deciding.all(found, lambda some: client.approve_many(some, deciding.by), dry_run, yes)


@takes_client
def deny(
    session: Session,
    client: Client,
    ids: Ids = None,
    reason: Annotated[str, option("TEXT", "Why the calls are denied.")] = "",
    agent: OfAgent = None,
    tool: OfTool = None,
    instance: OfInstance = None,
    everything: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    by: By = None,
) -> None:
    """Deny calls that wait for an approval: they end with E_APPROVAL_DENIED, a reason and a name.

    A filter shows what it selects, and asks.
    """
    wanted = CallFilter(tool=tool, instance=instance)
    deciding = _Deciding(session, client, "deny", login() if by is None else by)
    deciding.require_choice(ids, agent, wanted, everything=everything, dry_run=dry_run)
    if ids:
        return deciding.each(ids, lambda call_id: client.deny(call_id, reason, deciding.by))
    found = _waiting(client, agent, wanted)
    return deciding.all(found, lambda some: client.deny_many(some, reason, deciding.by), dry_run, yes)


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

    def require_choice(
        self, ids: list[str] | None, agent: str | None, wanted: CallFilter, *, everything: bool, dry_run: bool
    ) -> None:
        require_choice(ids, agent, wanted, everything=everything)
        if ids and dry_run:
            raise typer.BadParameter("--dry-run goes with a filter or --all.")

    def each(self, ids: list[str], act: Callable[[str], object]) -> None:
        """Decide about calls up to the first that is refused."""
        output, decided = self.session.output, [whole_id(self.client, call_id) for call_id in ids]
        for call_id in decided:
            act(call_id)
            if not output.as_json:
                output.print(f"{self.done} {call_id}")
        if output.as_json:
            output.document(self._document(decided))

    def all(
        self,
        found: list[CallRecord],
        act: Callable[[list[str]], list[str]],
        is_shown: bool,
        is_confirmed: bool,
    ) -> None:
        """Decide about the calls that are shown, and about none that come later."""
        output, selection = self.session.output, Selection()
        for record in found:
            selection.add(record)
        if is_shown or not found:
            return selection.show(output, none="No call waits for an approval.")
        if not output.as_json:
            selection.note(output)
        question = f"{self.decision.capitalize()} {counted(len(found), 'call')}"
        self.session.confirm(question, is_confirmed=is_confirmed)
        decided = act([record.id for record in found])
        missed = len(found) - len(decided)
        text = f"{self.done} {len(decided)}" + (f"; {missed} waited no longer" if missed else "")
        return output.give(self._document(decided), text)

    def _document(self, call_ids: list[str]) -> list[JsonObject]:
        return [{"id": call_id, "decision": self.decision, "by": self.by} for call_id in call_ids]


def _waiting(client: Client, agent: str | None, wanted: CallFilter) -> list[CallRecord]:
    require_agent(client, agent)
    return client.approvals(agent, **wanted)
