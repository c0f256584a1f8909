"""``goondan gc``: instances that nobody has used for long."""

from typing import Annotated

import typer

from goondan_tasks.cli.confirmation import can_ask, confirm
from goondan_tasks.cli.exit_codes import FAILED
from goondan_tasks.cli.removal_view import counter, show_plan, show_removals
from goondan_tasks.cli.seconds_argument import parse_seconds
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.revisions.checkouts import clean_checkouts


@takes_session
def gc(
    session: Session,
    older_than: Annotated[
        float,
        typer.Option(
            parser=parse_seconds, metavar="S", help="Those unused for S seconds, or 90s, 15m, 12h, 7d."
        ),
    ],
    unlisted: Annotated[
        bool,
        typer.Option(
            "--unlisted", help="Directories that Redis does not know, too, if nothing in them has changed."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before they are removed.")] = False,
) -> None:
    """Remove the instances that nobody has used for long, with their files below this state root.

    Those with calls or events that are queued, waiting or running stay. Revisions of bundles that are
    checked out on this machine (GOONDAN_CACHE_DIR), and that nobody has used for as long, go too.
    """
    output = session.output
    if not dry_run:
        _clean_checkouts(session, older_than)
    with session.client() as client:
        planned = client.collect_garbage(older_than, unlisted=unlisted, dry_run=True)
        leaving = [removal for removal in planned if removal.reason is None]
        if dry_run:
            return show_plan(planned, output)
        if leaving and not yes and can_ask(output):
            show_plan(leaving, output)
        confirm(f"Remove {len(leaving)} instances", output, is_confirmed=yes or not leaving)
        removals = client.collect_garbage(older_than, unlisted=unlisted, watch=counter(len(leaving)))
    show_removals(removals, output)
    if any(removal.files == "left" for removal in removals):
        raise typer.Exit(FAILED)
    return None


def _clean_checkouts(session: Session, older_than: float) -> None:
    try:
        removed = clean_checkouts(session.settings.cache_path, older_than)
    except OSError as error:
        session.output.note(f"Not all checkouts of revisions can be removed: {error}")
    else:
        if removed:
            session.output.note(f"Removed {len(removed)} checkouts of revisions.")
