"""What the commands that propose a revision say of it: ``--wait``, ``--timeout``, and how they end."""

from dataclasses import dataclass
from typing import Annotated

import typer

from goondan_tasks.cli.error_text import error_text
from goondan_tasks.cli.exit_codes import CONFIGURATION, OK, WAIT_TIMED_OUT
from goondan_tasks.cli.followers import Followers
from goondan_tasks.cli.output import Output
from goondan_tasks.cli.seconds_argument import parse_seconds
from goondan_tasks.revisions.active import Activation

#: how long a worker may take to load a revision
TIMEOUT_SECONDS = 60.0

Wait = Annotated[
    bool,
    typer.Option("--wait/--no-wait", help="Wait until a worker has loaded the revision, or cannot."),
]
Timeout = Annotated[
    float,
    typer.Option(parser=parse_seconds, metavar="S", help="Wait S seconds at most; the proposal stands."),
]

_TOLD = {
    "active": "Active: Steps that open now run it.",
    "superseded": "Another revision was proposed after it.",
    "unfollowed": "No worker follows the revisions of this bundle: workers run it when they start.",
}
_WAITED = "Not active yet: no worker has loaded it in time. `goondan changeset active` shows how it goes on."
_PROPOSED = "Proposed: a worker that loads it makes it active. `goondan changeset active` shows how it goes."


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a command waits."""

    is_wanted: bool
    seconds: float

    def outcome(self, followers: Followers, ref: str) -> Activation:
        """Return what has become of a proposal; raises as :meth:`Followers.outcome`."""
        return followers.outcome(ref, self.seconds if self.is_wanted else 0.0)

    def end(self, activation: Activation, output: Output) -> None:
        """Tell people how it stands (a program has been told), and end the command if it is not well.

        Raises:
            typer.Exit: the revision cannot be loaded, or nobody has loaded it in time.
        """
        is_late = activation.status == "proposed" and self.is_wanted
        code = CONFIGURATION if activation.status == "failed" else WAIT_TIMED_OUT if is_late else OK
        if not output.as_json:
            self._tell(activation, output)
        if code != OK:
            raise typer.Exit(code)

    def _tell(self, activation: Activation, output: Output) -> None:
        if activation.status == "failed":
            told = f"The workers stay with the revision before: {activation.code}: {activation.reason}"
            return output.note(error_text("Not active", told, "Correct the bundle, and commit again.", None))
        if activation.status == "proposed":
            return output.note(_WAITED if self.is_wanted else _PROPOSED)
        return output.note(_TOLD[activation.status])


def warn(warning: str, output: Output) -> None:
    """Tell people that workers do not know of a commit, and what to do."""
    if not output.as_json:
        remedy = "`goondan changeset activate` tells them, when they can be reached."
        output.note(error_text("Warning", warning, remedy, None))
