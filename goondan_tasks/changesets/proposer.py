"""What is committed shall become active: it is proposed to the workers that follow the bundle's revisions."""

from collections.abc import Callable
from dataclasses import dataclass

from redis.exceptions import RedisError

from goondan_tasks.changesets.results import Committed
from goondan_tasks.clocks import wall_clock
from goondan_tasks.errors import BrokerUnreachableError
from goondan_tasks.messages import iso_time
from goondan_tasks.revisions.active import ActiveRevision, RevisionChange

#: of paths of changed, of added and of deleted files: each worker and producer reads them once a second
MOST_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class Proposer:
    """Proposes commits, in the order in which they are made (000 §12.4)."""

    active: ActiveRevision
    clock: Callable[[], float] = wall_clock

    def announce(self, committed: Committed) -> None:
        """Propose one; nothing happens where no worker follows revisions.

        Raises:
            BrokerUnreachableError: Redis cannot be reached.
        """
        change = RevisionChange(
            new_ref=committed.new_ref,
            changeset_id=committed.changeset_id,
            summary=committed.summary.shortened(MOST_CHARACTERS).to_wire(),
            timestamp=iso_time(self.clock()),
            agent_name=committed.party.agent,
            instance_key=committed.party.instance_key,
        )
        try:
            self.active.propose(change)
        except RedisError as error:
            raise BrokerUnreachableError(f"The workers cannot be told of it: {error}") from error
