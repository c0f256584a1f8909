"""A worker that does not follow the revisions of its bundle, beside others that may."""

from collections.abc import Callable, Collection, Iterable

import structlog
from redis.exceptions import RedisError

from goondan_tasks.bundle import Bundle
from goondan_tasks.errors import BundleRevisionUnavailableError
from goondan_tasks.revisions.active import ActiveRevision
from goondan_tasks.revisions.checkouts import Checkout
from goondan_tasks.revisions.followed import FollowedBundle, UnfollowableError
from goondan_tasks.roster import WorkerRecord
from workers.revisions.loading_notes import LoadingNotes
from workers.revisions.revisions import Fetch

logger = structlog.get_logger(__name__)


def is_followed_elsewhere(
    agents: Collection[str], record: ActiveRevision, workers: Callable[[], Iterable[WorkerRecord]]
) -> bool:
    """Say whether workers of these agents live that follow revisions: then a new worker does, too.

    Calls name the revision that those agree on. If there are none, and none is about to be, nobody keeps the
    record up, and what earlier workers said is active is forgotten: calls that asked for it could not be run.
    """
    try:
        state = record.state()
        if state is None:
            return False
        if any(one.bundle_ref is not None and not set(agents).isdisjoint(one.agents) for one in workers()):
            return True
        if not LoadingNotes(record, workers).are_open(state):
            record.end(state)
    except (RedisError, ValueError) as error:
        logger.warning("revision.record_not_read", reason=str(error))
    return False


def not_followed(record: ActiveRevision, followed: Callable[[], FollowedBundle]) -> Fetch:
    """Return what gets revisions for a worker that follows none: those that calls name because others do."""

    def fetch(ref: str) -> tuple[Bundle, Checkout]:
        try:
            state = record.state()
        except (RedisError, ValueError) as error:
            raise _unavailable(ref) from error
        before = state.change.previous_ref if state and state.change else None
        if state is None or ref not in (state.active, before):
            raise _unavailable(ref)
        try:
            return followed().load(ref)
        except UnfollowableError as error:
            raise _unavailable(ref) from error

    return fetch


def _unavailable(ref: str) -> BundleRevisionUnavailableError:
    return BundleRevisionUnavailableError(
        f"The revision {ref} cannot be had: this worker does not follow revisions.",
        suggestion="Let the Swarm's policy.changesets be enabled, or set GOONDAN_BUNDLE_REMOTE, "
        "for all workers.",
    )
