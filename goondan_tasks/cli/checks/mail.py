"""Does somebody fetch the events of agents whose brain is elsewhere?"""

from collections.abc import Iterable

from goondan_tasks.cli.call_view import duration_text
from goondan_tasks.cli.checks.check import Check
from goondan_tasks.client.unfetched_mail import UnfetchedMail

#: a brain that works at a Turn for so long is asked for, too
UNFETCHED_SECONDS = 300.0


def mail_checks(unfetched: Iterable[UnfetchedMail]) -> list[Check]:
    """Warn of each agent without an entry whose events wait, while no producer receives them."""
    return [_unfetched(mail) for mail in unfetched]


def _unfetched(mail: UnfetchedMail) -> Check:
    many = "1 mailbox" if mail.mailboxes == 1 else f"{mail.mailboxes} mailboxes"
    message = f"events wait in {many}, for {duration_text(mail.seconds)}, and nobody fetches them"
    remedy = (
        f"Run a producer that calls client.receive({mail.agent!r}), or give the Agent an entry, so that its "
        "workers handle them; else they expire."
    )
    return Check(f"events of {mail.agent}", "warning", message, remedy)
