"""What a client can do about instances."""

from collections.abc import Callable
from itertools import chain

from goondan_tasks.client.connection import Connection
from goondan_tasks.instances.housekeeping import InstanceRemoval
from goondan_tasks.instances.table import InstanceInfo


class InstanceMethods(Connection):
    """The methods of :class:`goondan_tasks.client.Client` about instances.

    Files are removed below this process's ``GOONDAN_STATE_ROOT``; what stands elsewhere is said to.
    """

    def instances(self, agent: str | None = None) -> list[InstanceInfo]:
        """Return the instances, of one agent or of all, the one used last first.

        Raises:
            BrokerUnreachableError: Redis cannot be reached.
        """
        with self._broker_errors():
            return self._housekeeping.infos(agent)

    def delete_instance(
        self, instance_key: str, agent: str | None = None, *, dry_run: bool = False
    ) -> list[InstanceRemoval]:
        """Delete an instance with its files, or only one agent's part of it; say what became of it.

        Agents that work under one key share its directory, which goes with the last of them. There is
        one removal for each workspace that has such an instance. ``dry_run`` only says what would be done.

        Raises:
            InstanceNotFoundError: there is none.
            InstanceBusyError: it has live calls, or another instance works in its directory.
            BrokerUnreachableError: Redis cannot be reached.
        """
        with self._broker_errors():
            return self._housekeeping.delete(instance_key, agent, dry_run=dry_run)

    def collect_garbage(
        self,
        older_than_seconds: float,
        *,
        unlisted: bool = False,
        dry_run: bool = False,
        watch: Callable[[InstanceRemoval], object] | None = None,
    ) -> list[InstanceRemoval]:
        """Delete the instances that nobody has used for so long; say of each what became of it.

        Those with live calls stay. ``unlisted`` includes directories that Redis does not know, unchanged
        for so long. ``watch`` is told of each removal as soon as it is done.

        Raises:
            BrokerUnreachableError: Redis cannot be reached.
        """
        found = []
        with self._broker_errors():
            listed = self._housekeeping.collect(older_than_seconds, dry_run=dry_run)
            others = (
                self._housekeeping.collect_unlisted(older_than_seconds, dry_run=dry_run) if unlisted else ()
            )
            for removal in chain(listed, others):
                found.append(removal)
                if watch is not None:
                    watch(removal)
        return found
