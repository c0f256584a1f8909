"""``goondan changeset active`` and ``activate``: which revision the workers run, and which they shall."""

import typer

from goondan_tasks.cli.activation import Patience
from goondan_tasks.cli.call_view import local_time
from goondan_tasks.cli.exit_codes import CONFIGURATION
from goondan_tasks.cli.followers import Followers
from goondan_tasks.cli.output import Output
from goondan_tasks.clocks import wall_clock
from goondan_tasks.messages import epoch_milliseconds, iso_time
from goondan_tasks.revisions.active import RevisionChange, RevisionState
from goondan_tasks.revisions.checkouts import RevisionSource

_NOBODY = "No worker follows the revisions of this bundle."


def show_active(followers: Followers, output: Output) -> None:
    """Write which revision is active, which is proposed, and which could not be loaded.

    Raises:
        BrokerUnreachableError: Redis cannot be reached.
        ConfigError: the bundle is not valid.
    """
    state = followers.state()
    if output.as_json:
        return output.document({"active": None} if state is None else state.to_wire())
    if state is None:
        return output.print(_NOBODY)
    columns = ("state", "ref", "since", "changeset", "by", "reason")
    return output.table(columns, _rows(state), unbroken="ref")


def activate(
    source: RevisionSource, name: str | None, followers: Followers, *, patience: Patience, output: Output
) -> None:
    """Propose a revision, and tell what becomes of it.

    Raises:
        BundleRevisionUnavailableError, GitError: there is no such revision, or others could not have it.
        BrokerUnreachableError: Redis cannot be reached.
        ConfigError: the bundle is not valid.
        typer.Exit: it cannot be loaded, nobody has loaded it in time, or nobody follows revisions.
    """
    ref = str(source.named(name))
    followers.propose(RevisionChange(new_ref=ref, timestamp=iso_time(wall_clock())))
    activation = patience.outcome(followers, ref)
    if output.as_json:
        output.document(activation.to_wire())
    else:
        output.print(ref)
    patience.end(activation, output)
    if activation.status == "unfollowed":
        raise typer.Exit(CONFIGURATION)


def _rows(state: RevisionState) -> list[tuple[object, ...]]:
    change, proposed, failed = state.change, state.proposed, state.failed
    rows: list[tuple[object, ...]] = [("active", state.active, *_who(change), None)]
    if proposed is not None:
        rows.append(("proposed", proposed.new_ref, *_who(proposed), None))
    if failed is not None:
        why = f"{failed.code}: {failed.reason}"
        when = local_time(epoch_milliseconds(failed.timestamp))
        rows.append(("failed", failed.ref, when, None, failed.worker, why))
    return rows


def _who(change: RevisionChange | None) -> tuple[object, object, object]:
    """Return when it was proposed, from which changeset, and by whom."""
    if change is None:
        return None, None, None
    who = f"{change.agent_name} ({change.instance_key})" if change.agent_name else None
    return local_time(epoch_milliseconds(change.timestamp)), change.changeset_id, who
