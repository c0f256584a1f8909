"""What operators do with a client: cancel many calls, pause and resume agents and tools, drain workers."""

from collections.abc import Callable, Iterable
from typing import Unpack

from broker_config.connections import redis_time
from goondan_tasks.client.acts import OF_OPERATORS
from goondan_tasks.client.arguments import checking_arguments
from goondan_tasks.client.connection import ClientConnection
from goondan_tasks.client.schedules import Schedules
from goondan_tasks.client.status import LimitStatus, read_limits
from goondan_tasks.contract.errors import ToolInputValidationError, ToolNotInCatalogError
from goondan_tasks.contract.failure import LONGEST_NAME
from goondan_tasks.contract.wording import hint, require_keywords
from goondan_tasks.fleet.agent_registry import ShutdownRequest, ShutdownRequests, WorkerRecord
from goondan_tasks.fleet.audit import AuditEntry, AuditFilter, recording
from goondan_tasks.fleet.pauses import Pause
from goondan_tasks.fleet.usage import MOST_DAYS, MOST_HOURS, Handoffs, Usage, UsageStore, groups_of
from goondan_tasks.history.mailbox import Mailbox, read_mailbox
from goondan_tasks.instances.workdir_files import FilePart, InstanceFile, list_files, read_file
from goondan_tasks.ledger.call_filter import CallFilter, open_calls
from goondan_tasks.ledger.record import CallRecord

#: how many characters a reason may have
LONGEST_REASON = 500


@recording(OF_OPERATORS)
@checking_arguments
class OperatorClient(ClientConnection):
    """The operations on many calls, on agents and on workers."""

    @property
    def schedules(self) -> Schedules:
        """The schedules of all bundles, and those that are made at run time."""
        return Schedules(
            self._schedule_store,
            self._known_agents,
            self.submitter,
            self._calls,
            self.producer,
            self._audit,
            self.broker_errors,
        )

    def audit(
        self,
        limit: int = 50,
        *,
        by: str | None = None,
        target: str | None = None,
        act: str | None = None,
        door: str | None = None,
        newer_than: float | None = None,
        before: str | None = None,
    ) -> list[AuditEntry]:
        """Return who did what, when, and by which door, the latest first; the latest 10,000 acts are kept.

        ``by`` is a person or a token, ``target`` the id or name of an object, or an agent; ``newer_than`` is
        in seconds. ``before``, the id of an entry, goes on after it. What a program does is there, too, but
        if programs do it all the time (cancel, complete, approve) only if it names a person: by ``by``, or
        within ``with acting_as("ann", "our bot"):``, which is in ``goondan_tasks.client``.

        Raises:
            ToolInputValidationError: ``before`` is no id of an entry.
        """
        with self.broker_errors():
            return self._audit.find(
                limit, before, AuditFilter(by=by, target=target, act=act, door=door, newer_than=newer_than)
            )

    def cancel_all(
        self,
        agent: str | None = None,
        *,
        dry_run: bool = False,
        watch: Callable[[CallRecord], object] | None = None,
        **wanted: Unpack[CallFilter],
    ) -> list[str]:
        """Cancel all calls and events that have not ended, of one agent or of all; return their ids.

        ``wanted`` narrows them. ``watch`` is called with each one before it is cancelled; with ``dry_run``
        none is.

        Raises:
            AgentNotFoundError: there is neither such an agent, nor a call for it.
        """
        require_keywords("cancel_all()", wanted, CallFilter.__annotations__)
        found: list[str] = []
        with self.broker_errors():
            for record in open_calls(self._ledger, agent, wanted):
                found.append(record.id)
                if watch is not None:
                    watch(record)
            if agent is not None and not found:
                self._known_agents.require(agent)
        return found if dry_run else self.cancel_many(found)

    def cancel_many(
        self, call_ids: Iterable[str], *, watch: Callable[[int], object] | None = None
    ) -> list[str]:
        """Cancel calls by their ids, many in one trip; return the ids of those that are cancelled.

        Those that ended otherwise, and unknown ones, are left out. ``watch`` is called with the number of ids
        done so far.
        """
        return self._calls.cancel_many(list(call_ids), watch)

    def pause(self, agent: str, tool: str | None = None, reason: str = "", by: str = "") -> Pause:
        """Pause an agent, or one of its tools; workers notice within seconds, also those that start later.

        Workers of a paused agent take none of its calls and events; those that run go on. Calls of a paused
        tool wait, and other tools go on. Deadlines go on as well, and calls can be cancelled. A pause lasts
        until :meth:`resume`; without any worker, 30 days. Another one replaces the reason.

        Raises:
            AgentNotFoundError: no such agent.
            ToolNotInCatalogError: the agent has no such tool.
            ToolInputValidationError: ``reason`` or ``by`` is too long.
        """
        if len(reason) > LONGEST_REASON or len(by) > LONGEST_NAME:
            raise ToolInputValidationError(
                f"A reason has {LONGEST_REASON} characters at most, and a name {LONGEST_NAME}."
            )
        with self.broker_errors():
            self._require_target(agent, tool)
            return self._pauses.pause(agent, tool, reason, by)

    def resume(self, agent: str, tool: str | None = None) -> bool:
        """End the pause of an agent, or of one of its tools; return whether there was one.

        Calls that waited run in the order in which they were queued. Raises as :meth:`pause` does.
        """
        with self.broker_errors():
            was_paused = self._pauses.resume(agent, tool)
            if not was_paused:
                self._require_target(agent, tool)
            return was_paused

    def paused(self) -> list[Pause]:
        """Return what is paused, by agent and tool."""
        with self.broker_errors():
            return list(self._pauses.read().pauses.values())

    def mailbox(self, agent: str, instance_key: str = "default", limit: int = 50) -> Mailbox:
        """Return the events that wait for an instance, in order: the first is handled, or is the next.

        ``limit`` is 200 at most; ``count`` says how many there are. An event is cancelled as a call is.

        Raises:
            AgentNotFoundError: no such agent, and nothing waits for it.
        """
        with self.broker_errors():
            found = read_mailbox(self._ledger, agent, instance_key, limit)
            if not found.count:
                self._known_agents.require(agent)
        return found

    def files(self, agent: str, instance_key: str = "default") -> list[InstanceFile]:
        """Return the files of an instance's workdir by path, 10,000 at most.

        Those deeper than 100 directories, or with a path that is not UTF-8, are left out. They are read below
        this process's ``GOONDAN_STATE_ROOT``.

        Raises:
            InstanceNotFoundError: the agent has no such instance.
            ConversationError: the files are not below this state root.
            InstanceFileError: the workdir cannot be read.
        """
        with self.broker_errors():
            workdir = self._housekeeping.workdir(instance_key, agent)
        return list_files(workdir)

    def read_file(
        self, agent: str, instance_key: str, path: str, offset: int = 0, limit: int | None = None
    ) -> FilePart:
        """Read a part of a file of an instance's workdir, 1 MiB at most; no link is followed.

        Raises:
            InstanceFileError: there is no such file, or it cannot be read.
            InstanceNotFoundError, ConversationError: as :meth:`files`.
        """
        with self.broker_errors():
            workdir = self._housekeeping.workdir(instance_key, agent)
        return read_file(workdir, path, offset, limit)

    def approval_count(self, agent: str | None = None) -> int:
        """Return how many calls ``approvals`` would return; it reads none of them."""
        with self.broker_errors():
            return self._completions.approval_count(self._agents_of(agent))

    def limits(self) -> list[LimitStatus]:
        """Return the limits that calls wait for, paused tools among them."""
        with self.broker_errors():
            return read_limits(self._ledger)

    def usage(self, days: int = 30, by: str = "day") -> list[Usage]:
        """Return what was used on the last ``days``, today included: calls, requests to models, and tokens.

        ``by`` names what groups it, separated by commas: ``day``, ``agent``, ``model`` and ``user``, which is
        ``auth.subjects.user``. Days are those of UTC. Workers count what has run, and write it every few
        seconds; it is kept for ``GOONDAN_USAGE_DAYS``.

        Raises:
            ToolInputValidationError: there are more than 400 days, or ``by`` names something else.
        """
        groups = groups_of(by)
        if not 1 <= days <= MOST_DAYS:
            raise ToolInputValidationError(f"days is {days}, and must be 1 to {MOST_DAYS}.")
        with self.broker_errors():
            return UsageStore(self._redis, self._ledger.keys).usage(redis_time(self._redis), days, groups)

    def handoffs(self, hours: int = 1) -> Handoffs:
        """Return how often agents have passed work to each other: in this hour and the ``hours`` before it.

        Requests and events count, when they have been handled; answers do not. The sender of what comes from
        outside is ``client``.

        Raises:
            ToolInputValidationError: there are more than 48 hours.
        """
        if not 0 <= hours <= MOST_HOURS:
            raise ToolInputValidationError(f"hours is {hours}, and must be 0 to {MOST_HOURS}.")
        with self.broker_errors():
            return UsageStore(self._redis, self._ledger.keys).handoffs(redis_time(self._redis), hours)

    def _require_target(self, agent: str, tool: str | None) -> None:
        record = self._known_agents.require(agent)
        if tool is None:
            return
        names = [item["name"] for item in self._known_agents.current(agent).catalog]
        if tool not in names:
            raise ToolNotInCatalogError(
                f"Agent {record.name!r} has no tool {tool!r}.",
                suggestion=hint(tool, names, "It has no tools: pause the agent."),
            )

    def shutdown(
        self, agent: str | None = None, worker: str | None = None, reason: str = ""
    ) -> list[WorkerRecord]:
        """Ask an agent's workers, or one worker by its name, to drain as they do on SIGTERM.

        Return the workers that are asked; each notices within seconds. A worker that also serves other agents
        continues for them. A worker that starts later is not affected.

        Raises:
            AgentNotFoundError: no such agent.
            ValueError: neither an agent nor a worker is named, or both are.
        """
        request = ShutdownRequest(agent=agent, worker=worker, reason=reason)
        with self.broker_errors():
            if agent is not None:
                self._known_agents.require(agent)
            ShutdownRequests(self._redis, self._ledger.keys).ask(request)
            return [
                one for one in self._agent_registry.workers() if agent in one.agents or one.name == worker
            ]
