"""``goondan changeset``: proposed changes of a bundle, from opening to commit."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from broker_config.settings import Settings
from goondan_tasks.bundle import load_bundle
from goondan_tasks.changesets.changesets import Changesets
from goondan_tasks.changesets.party import Party
from goondan_tasks.changesets.policy import UNRESTRICTED, ChangesetRules
from goondan_tasks.changesets.results import CommitResult
from goondan_tasks.cli.bundle_changesets import (
    AsJson,
    BundlePath,
    SwarmName,
    changesets_of,
    refuse,
    show_summary,
    told_by_git,
)
from goondan_tasks.cli.confirmation import confirm
from goondan_tasks.cli.output import Output
from goondan_tasks.cli.printable import printable
from goondan_tasks.cli.selection import chosen_agents, chosen_bundle


class Action(StrEnum):
    """What is to be done."""

    OPEN = "open"
    DIFF = "diff"
    COMMIT = "commit"
    DISCARD = "discard"
    LIST = "list"
    LOG = "log"


_TAKE_ID = {Action.DIFF, Action.COMMIT, Action.DISCARD}


def changeset(
    action: Annotated[
        Action, typer.Argument(metavar="ACTION", help="open, diff, commit, discard, list or log.")
    ],
    changeset_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="Which one, for diff, commit and discard.")
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
    bundle: BundlePath = None,
    swarm: SwarmName = None,
    as_json: AsJson = False,
) -> None:
    """Change a bundle that runs: open a changeset, edit the files in its directory, and commit it.

    The bundle must be in a git repository. Without --agent no policy limits the files: whoever runs this
    command may write the repository anyway.
    """
    if (action in _TAKE_ID) != (changeset_id is not None):
        raise typer.BadParameter("diff, commit and discard take the ID of a changeset; the others take none.")
    settings, output = Settings.load(bundle=bundle, swarm=swarm), Output(as_json)
    changesets = changesets_of(settings)
    with told_by_git():
        match action:
            case Action.OPEN:
                _open(changesets, _party(settings, agent), message, output)
            case Action.COMMIT:
                result = changesets.commit(changeset_id or "", message, _party(settings, agent))
                _show_commit(result, output)
            case Action.DIFF:
                _diff(changesets, changeset_id or "", output)
            case Action.DISCARD:
                _discard(changesets, changeset_id or "", output, yes=yes)
            case Action.LIST:
                _list(changesets, output)
            case Action.LOG:
                _log(changesets, limit, output)


def _open(changesets: Changesets, party: Party, reason: str, output: Output) -> None:
    opened = changesets.open(party, reason)
    if output.as_json:
        return output.document(opened.to_wire())
    place = Path(opened.workdir, opened.hint.bundle_root_in_workdir)
    return output.print(f"{opened.changeset_id}  {printable(str(place))}")


def _show_commit(result: CommitResult, output: Output) -> None:
    if output.as_json:
        output.document(result.to_wire())
    if result.error is not None:
        refuse(result.error, output)
    if not output.as_json and result.summary is not None:
        show_summary(f"{result.new_ref}", result.summary, output)


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
    rows = [tuple(item[field] for field in fields) for item in found]
    return output.table(columns, rows, unbroken="changeset")


def _log(changesets: Changesets, limit: int, output: Output) -> None:
    commits = changesets.log(limit)
    if output.as_json:
        return output.document(commits)
    fields = ("committedAt", "author", "message", "changesetId", "ref")
    columns = ("committed", "author", "message", "changeset", "ref")
    rows = [tuple(commit[field] for field in fields) for commit in commits]
    return output.table(columns, rows, unbroken="ref")


def _rules(settings: Settings, agent: str | None) -> ChangesetRules:
    if agent is None:
        return UNRESTRICTED
    bundle = load_bundle(chosen_bundle(settings))
    [known] = chosen_agents(bundle, settings.swarm, [agent])
    return ChangesetRules.of(bundle, known, swarm=settings.swarm)


def _party(settings: Settings, agent: str | None) -> Party:
    """Return the person at the command line; its changesets are beside the instances, not in the bundle."""
    return Party(settings.state_root_path / "changesets", _rules(settings, agent), agent)
