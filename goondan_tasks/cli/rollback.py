"""``goondan rollback``: the bundle as it was, as a new commit."""

from typing import Annotated

import typer

from goondan_tasks.cli.activation import TIMEOUT_SECONDS, Patience, Timeout, Wait
from goondan_tasks.cli.bundle_changesets import changesets_of, show_committed, told_by_git
from goondan_tasks.cli.followers import Followers
from goondan_tasks.cli.session import Session, takes_session


@takes_session
def rollback(
    session: Session,
    ref: Annotated[
        str,
        typer.Argument(
            metavar="REF", help="git:<commit>, its first digits, or any name of a commit such as HEAD~1."
        ),
    ],
    wait: Wait = True,
    timeout: Timeout = TIMEOUT_SECONDS,
) -> None:
    """Commit the bundle as it was at REF. Nothing is lost: what came since stays in the history."""
    patience, output = Patience(wait, timeout), session.output
    with told_by_git(), Followers(session.settings) as followers:
        result = changesets_of(session.settings, followers).roll_back(ref)
        show_committed(result, result.summary, followers, patience=patience, output=output)
