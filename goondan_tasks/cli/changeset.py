"""``goondan changeset``: proposed changes of a bundle, from opening to commit."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from broker_config.settings import Settings
from goondan_tasks.bundle import load_bundle
from goondan_tasks.changesets.api import CommitResult
from goondan_tasks.changesets.changesets import Changesets
from goondan_tasks.changesets.policy import UNRESTRICTED, ChangesetRules, Principal
from goondan_tasks.cli.activation import TIMEOUT_SECONDS, Patience, Timeout, Wait
from goondan_tasks.cli.bundle_changesets import (
    changesets_of,
    refuse,
    show_committed,
    source_of,
    told_by_git,
)
from goondan_tasks.cli.call_view import listed_time
from goondan_tasks.cli.changeset_activation import activate, show_active
from goondan_tasks.cli.confirmation import confirm
from goondan_tasks.cli.followers import Followers
from goondan_tasks.cli.output import Output
from goondan_tasks.cli.printable import printable
from goondan_tasks.cli.selection import chosen_agents, chosen_bundle
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.messages import JsonObject, epoch_milliseconds


class Action(StrEnum):
    """What is to be done."""

    OPEN = "open"
    DIFF = "diff"
    COMMIT = "commit"
    DISCARD = "discard"
    LIST = "list"
    LOG = "log"
    ACTIVE = "active"
    ACTIVATE = "activate"


#: so much of a ref stands on a narrow terminal; git takes fewer digits for a commit, too
SHORT_REF = len("git:") + 12

_TAKE_ID = {Action.DIFF, Action.COMMIT, Action.DISCARD}
_TAKE_NONE = {Action.OPEN, Action.LIST, Action.LOG, Action.ACTIVE}


@takes_session
def changeset(
    session: Session,
    action: Annotated[
        Action,
        typer.Argument(metavar="ACTION", help="open, diff, commit, discard, list, log, active or activate."),
    ],
    changeset_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="Which one, for diff, commit and discard; for activate a revision, else the branch's last.",
        ),
    ] = None,
    message: Annotated[
        str, typer.Option("--message", "-m", metavar="TEXT", help="Why: the reason, or the commit's message.")
    ] = "",
    agent: Annotated[
        str | None,
        typer.Option(metavar="A", help="Open or commit as this agent, within what the policy allows it."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many commits log shows.")] = 20,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before it is discarded.")] = False,
    wait: Wait = True,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Change a bundle that runs: open a changeset, edit the files in its directory, and commit it.

    The bundle must be in a git repository. Without --agent no policy limits the files: whoever runs this
    command may write the repository anyway. The workers run what is committed from their next Steps on;
    active says which revision that is, and activate proposes one that was committed without a changeset.
    """
    _require_fit(action, changeset_id)
    settings, output, patience = session.settings, session.output, Patience(wait, timeout)
    with told_by_git(), Followers(settings) as followers:
        match action:
            case Action.OPEN:
                _open(changesets_of(settings), _principal(settings, agent), message, output)
            case Action.COMMIT:
                changesets = changesets_of(settings, followers)
                result = changesets.commit(changeset_id or "", message, _principal(settings, agent))
                _show_commit(result, followers, patience, output)
            case Action.DIFF:
                _diff(changesets_of(settings), changeset_id or "", output)
            case Action.DISCARD:
                _discard(changesets_of(settings), changeset_id or "", output, yes=yes)
            case Action.LIST:
                _list(changesets_of(settings), output)
            case Action.LOG:
                _log(changesets_of(settings), limit, output)
            case Action.ACTIVE:
                show_active(followers, output)
            case Action.ACTIVATE:
                activate(source_of(settings), changeset_id, followers, patience=patience, output=output)


def _require_fit(action: Action, changeset_id: str | None) -> None:
    if (action in _TAKE_ID and changeset_id is None) or (action in _TAKE_NONE and changeset_id is not None):
        raise typer.BadParameter(
            "diff, commit and discard take the ID of a changeset, activate may take a revision; "
            "the others take none."
        )


def _open(changesets: Changesets, principal: Principal, reason: str, output: Output) -> None:
    opened = changesets.open(principal, reason)
    if output.as_json:
        return output.document(opened.to_wire())
    place = Path(opened.workdir, opened.hint.bundle_root_in_workdir)
    output.print(f"{opened.changeset_id}  {printable(str(place))}")
    return output.note(
        "Edit the files there, then: goondan changeset diff|commit|discard " + opened.changeset_id
    )


def _show_commit(result: CommitResult, followers: Followers, patience: Patience, output: Output) -> None:
    if result.error is not None:
        if output.as_json:
            output.document(result.to_wire())
        refuse(result.error, output)
    show_committed(result, result.summary, followers, patience=patience, output=output)


def _diff(changesets: Changesets, changeset_id: str, output: Output) -> None:
    diff = changesets.diff(changeset_id)
    if output.as_json:
        return output.document({"changesetId": changeset_id, "diff": diff})
    return output.stream([diff.encode("utf-8")])


def _discard(changesets: Changesets, changeset_id: str, output: Output, *, yes: bool) -> None:
    confirm(f"Discard changeset {changeset_id} and its files", output, is_confirmed=yes)
    changesets.discard(changeset_id)
    if output.as_json:
        return output.document({"discarded": changeset_id})
    return output.print(f"discarded {changeset_id}")


def _list(changesets: Changesets, output: Output) -> None:
    found = [item.model_dump(mode="json", by_alias=True) for item in changesets.all()]
    if output.as_json:
        return output.document(found)
    fields = ("openedAt", "agentName", "instanceKey", "reason", "workdir", "changesetId")
    columns = ("opened", "agent", "instance", "reason", "directory", "changeset")
    rows = [_row(item, fields, output) for item in found]
    return output.table(
        columns, rows, unbroken="changeset", none="No changeset is open: `goondan changeset open` begins one."
    )


def _log(changesets: Changesets, limit: int, output: Output) -> None:
    commits = changesets.log(limit)
    if output.as_json:
        return output.document(commits)
    fields = ("committedAt", "author", "message", "changesetId", "ref")
    columns = ("committed", "author", "message", "changeset", "ref")
    shown = SHORT_REF if output.is_narrow else None
    rows = [_row({**commit, "ref": commit["ref"][:shown]}, fields, output) for commit in commits]
    none = "The bundle has no commit."
    return output.table(columns, rows, unbroken="ref", spare={"changeset"}, none=none)


def _row(item: JsonObject, fields: Sequence[str], output: Output) -> tuple[object, ...]:
    """Return the cells of an item, of which the first field is a time."""
    first, *others = fields
    return listed_time(epoch_milliseconds(item[first]), output), *(item[field] for field in others)


def _rules(settings: Settings, agent: str | None) -> ChangesetRules:
    if agent is None:
        return UNRESTRICTED
    bundle = load_bundle(chosen_bundle(settings))
    [known] = chosen_agents(bundle, settings.swarm, [agent])
    return ChangesetRules.of(bundle, known, swarm=settings.swarm)


def _principal(settings: Settings, agent: str | None) -> Principal:
    """Return the person at the command line; its changesets are beside the instances, not in the bundle."""
    return Principal(settings.state_root_path / "changesets", _rules(settings, agent), agent)
