"""``goondan rollback``: the bundle as it was, as a new commit."""

from typing import Annotated

import typer

from broker_config.settings import Settings
from goondan_tasks.cli.bundle_changesets import AsJson, BundlePath, changesets_of, show_summary, told_by_git
from goondan_tasks.cli.output import Output


def rollback(
    ref: Annotated[
        str, typer.Argument(metavar="REF", help="git:<commit>, or any name of a commit such as HEAD~1.")
    ],
    bundle: BundlePath = None,
    as_json: AsJson = False,
) -> None:
    """Commit the bundle as it was at REF. Nothing is lost: what came since stays in the history."""
    output = Output(as_json)
    changesets = changesets_of(Settings.load(bundle=bundle))
    with told_by_git():
        result = changesets.roll_back(ref)
    if as_json:
        return output.document(result.to_wire())
    return show_summary(result.new_ref, result.summary, output)
