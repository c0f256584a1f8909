"""Looking after instances: which there are, deleting one, collecting those that nobody uses any more."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from goondan_tasks.agents.home_files import HomeFiles
from goondan_tasks.agents.homes import Home, encoded
from goondan_tasks.agents.instance_record import InstanceInfo, InstanceRecord
from goondan_tasks.agents.instances import Instances
from goondan_tasks.agents.live_calls import LiveCalls
from goondan_tasks.agents.retirement import InstanceRemoval, Retirement
from goondan_tasks.errors import InstanceBusyError, InstanceNotFoundError
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.roster import AgentRecord

#: files that a deletion left aside are waste only after this time: it may be at work still, or of a system
#: on another Redis that has the same state root
ASIDE_SECONDS = 3600.0

_ELSEWHERE = "its files are not below this machine's state root"


class Housekeeping:
    """The instances of one namespace, and their files below one state root."""

    def __init__(self, ledger: Ledger, state_root: Path, agents: Callable[[], Iterable[AgentRecord]]) -> None:
        self._table = Instances(ledger.redis, ledger.keys)
        self._files = HomeFiles(state_root)
        self._live_calls = LiveCalls(ledger)
        self._agents = agents
        self._retirement = Retirement(
            self._table,
            self._files,
            self._live_calls,
            agents=lambda: [agent.name for agent in agents()],
        )

    def infos(self, agent: str | None = None) -> list[InstanceInfo]:
        """Return the instances, of one agent or of all, the one used last first."""
        infos = [info for record in self._table.records() for info in record.infos()]
        wanted = [info for info in infos if agent in {None, info.target}]
        return sorted(wanted, key=lambda info: info.last_used_at, reverse=True)

    def delete(
        self, instance_key: str, agent: str | None = None, *, dry_run: bool = False
    ) -> list[InstanceRemoval]:
        """Delete an instance with its files, or one agent's part of it, in every workspace that has it.

        Raises:
            InstanceNotFoundError: there is none.
            InstanceBusyError: it has live calls, or another instance works in its directory.
        """
        records = self._records_of(instance_key, agent)
        if not records:
            whose = "" if agent is None else f" of agent {agent!r}"
            raise InstanceNotFoundError(f"No instance {instance_key!r}{whose}.")
        self._require_free(records, agent)
        if dry_run:
            return [self._part(record, agent) for record in records]
        shared = [record for record in records if agent is not None and record.agents != (agent,)]
        removals = [self._leave(record, agent or "") for record in shared]
        removals += self._retirement.run([record for record in records if record not in shared])
        if not any(removal.removed for removal in removals):
            raise _busy(instance_key, removals[0].reason)
        return removals

    def collect(
        self, older_than_seconds: float, *, workspace: str | None = None, dry_run: bool = False
    ) -> Iterator[InstanceRemoval]:
        """Delete the instances that nobody has used for so long, and say of each what became of it.

        One with live calls counts as used now, and stays; so does one in whose directory another works, and
        one whose files are not here. What deletions before this one have left half-done is removed, too.
        """
        cutoff = self._table.now() - older_than_seconds * 1000
        records = [
            record
            for record in self._table.records(self._table.unused_since(cutoff))
            if record.tenants and workspace in {None, record.workspace}
        ]
        calls = self._live_calls.all() if records else []
        stay = self._retirement.reasons(records, calls, leaving={record.home for record in records})
        if not dry_run:
            self._table.touch(list(stay))
            self._remove_waste()
        plans = {record.home: self._retirement.plan(record) for record in records}
        stay |= {home: _ELSEWHERE for home, plan in plans.items() if plan.files == "elsewhere"}
        for home, reason in stay.items():
            yield plans[home].model_copy(update={"reason": reason})
        free = [record for record in records if record.home not in stay]
        if dry_run:
            yield from (plans[record.home] for record in free)
        else:
            yield from self._retirement.run(free, cutoff)

    def collect_unlisted(
        self, older_than_seconds: float, *, dry_run: bool = False
    ) -> Iterator[InstanceRemoval]:
        """Delete the directories that the table does not know, and in which nothing was changed for so long.

        They may be those of a system on another Redis with the same state root and workspace.
        """
        latest = time.time() - older_than_seconds
        listed = set(self._listed())
        found = [
            InstanceRecord(home)
            for workspace in self._workspaces()
            for home in self._files.homes(workspace)
            if home not in listed and self._files.newest(home) <= latest
        ]
        stay = self._retirement.reasons(found, self._live_calls.all() if found else [])
        free = [record for record in found if record.home not in stay]
        yield from map(self._retirement.plan, free) if dry_run else self._retirement.run(free)

    def _records_of(self, instance_key: str, agent: str | None) -> list[InstanceRecord]:
        """Return the instances of a key; also one of which there is only a directory."""
        records = list(self._table.records(self._table.homes_of(instance_key)))
        wanted = [record for record in records if agent in {None, *record.agents}]
        if records or agent is not None:
            return wanted
        homes = [Home(workspace, encoded(instance_key)) for workspace in self._workspaces()]
        return [InstanceRecord(home, key=instance_key) for home in homes if self._files.is_there(home)]

    def _require_free(self, records: list[InstanceRecord], agent: str | None) -> None:
        calls = self._live_calls.all()
        for record in records:
            if agent is None or record.agents == (agent,):
                reasons = self._retirement.reasons([record], calls)
            else:  # the others keep the directory, so only its own calls count
                own = [call for call in calls if call.agent == agent]
                reasons = self._retirement.reasons([replace(record, guests=())], own)
            if reasons:
                raise _busy(record.key or "", reasons[record.home])

    def _leave(self, record: InstanceRecord, agent: str) -> InstanceRemoval:
        tenant = record.tenant(agent)
        is_gone = tenant is not None and self._table.leave(record.home, tenant)
        part = self._part(record, agent)
        return part.model_copy(update={"removed": True} if is_gone else {"reason": "it was used again"})

    def _part(self, record: InstanceRecord, agent: str | None) -> InstanceRemoval:
        """Describe what a deletion takes away; an agent alone leaves the directory to the others."""
        plan = self._retirement.plan(record)
        if agent is None or record.agents == (agent,):
            return plan
        return plan.model_copy(update={"agents": (agent,), "files": "kept"})

    def _remove_waste(self) -> None:
        for workspace in self._workspaces():
            for home, token in self._files.left_aside(workspace):
                [record] = self._table.records([home])
                if token not in record.tokens and self._files.aside_for(home, token) > ASIDE_SECONDS:
                    self._files.remove(home, token)

    def _listed(self) -> Iterator[Home]:
        for record in self._table.records():
            yield record.home
            yield from (record.home.beside(tenant.cwd) for tenant in record.tenants if tenant.cwd)

    def _workspaces(self) -> list[str]:
        """Return the directory names of the agents' workspaces."""
        return sorted({encoded(agent.workspace) for agent in self._agents()})


def _busy(instance_key: str, reason: str | None) -> InstanceBusyError:
    return InstanceBusyError(f"Instance {instance_key!r} was not deleted: {reason}.")
