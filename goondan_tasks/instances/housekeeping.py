"""Lists and deletes instances, and collects unused ones, without touching an instance in use.

A deletion first *holds* the directory in the table, so that no worker opens it or spawns into it. It checks
for live calls, sets the directory aside on disk, and checks again, because a worker that opened the directory
recently runs calls without asking again. If a call has started in between, everything is restored. Otherwise
the instance is dropped from the table, and its files are removed.

If the deleting process dies, its hold expires. Files that it has set aside are restored when the instance is
next opened; if the instance was already dropped, the next collection removes them.
"""

import itertools
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from broker_config.connections import rows_of
from goondan_tasks.contract.errors import ConversationError, InstanceBusyError, InstanceNotFoundError
from goondan_tasks.contract.messages import WireModel
from goondan_tasks.fleet.agent_registry import AgentRecord
from goondan_tasks.instances.files import InstanceFiles
from goondan_tasks.instances.table import (
    Hold,
    InstanceDirectory,
    InstanceInfo,
    InstanceRecord,
    Instances,
    encoded,
)
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import CALL_FIELDS, call_of

#: how many calls one round trip reads
CALLS_AT_ONCE = 500

#: the statuses of calls without a result
_LIVE = frozenset({b"scheduled", b"queued", b"running", b"pending"})
_DONE = b"done"


@dataclass(frozen=True, slots=True)
class LiveCall:
    """A call or event that is scheduled, queued, running, pending, or newly submitted."""

    id: str
    agent: str
    instance_key: str


class LiveCalls:
    """Reads from the ledger which instances have live calls."""

    def __init__(self, ledger: Ledger) -> None:
        self._redis = ledger.redis
        self._keys = ledger.keys

    def all(self) -> list[LiveCall]:
        """Return the calls and events without a result, and events with a result whose handlers still run.

        The latter were answered at their time limit (``finish_event.lua``). Calls that are submitted while
        this reads may be missing.
        """
        ids = (member for member, _ in self._redis.zscan_iter(self._keys.due, count=CALLS_AT_ONCE))
        return self._read(ids, live_only=True)

    def since(self, moment: int, agents: Iterable[str]) -> list[LiveCall]:
        """Return the calls and events of ``agents`` that were submitted at ``moment`` (ms) or later."""
        with self._redis.pipeline(transaction=False) as pipe:
            for agent in agents:
                pipe.zrange(self._keys.calls(agent), moment, "+inf", byscore=True)
            ids = itertools.chain.from_iterable(row or () for row in rows_of(pipe))
        return self._read(ids, live_only=False)

    def _read(self, ids: Iterable[bytes], *, live_only: bool) -> list[LiveCall]:
        found, rest = [], iter(ids)
        while batch := list(itertools.islice(rest, CALLS_AT_ONCE)):
            with self._redis.pipeline(transaction=False) as pipe:
                for call_id in batch:
                    pipe.hmget(self._keys.call(call_id.decode()), "status", "token", *CALL_FIELDS)
                rows = rows_of(pipe)
            for call_id, row in zip(batch, rows, strict=True):
                if row is None:
                    continue
                status, token, *kept = row
                is_live = status in _LIVE or (status == _DONE and token is not None)
                if any(kept) and (is_live or not live_only):
                    # not parsed as a ToolCall, so that calls of newer versions are found, too
                    wire = call_of(dict(zip(CALL_FIELDS, kept, strict=True)))
                    agent, key = str(wire.get("agentName", "")), str(wire.get("instanceKey", "default"))
                    found.append(LiveCall(call_id.decode(), agent, key))
        return found


#: how many directories are held at a time
DIRECTORIES_AT_ONCE = 200


class InstanceRemoval(WireModel):
    """The outcome of deleting an instance, or in a dry run the plan."""

    #: ``None`` for a directory that is not in the table: its key is unknown
    instance_key: str | None
    workspace: str
    agents: tuple[str, ...]
    #: the instance's directory, below this machine's state root
    path: str
    removed: bool = False
    #: ``kept``: other agents work there; ``absent``: there are none; ``elsewhere``: below another state
    #: root; ``left``: they could not be removed
    files: Literal["here", "kept", "absent", "elsewhere", "removed", "left"] = "here"
    #: why the instance or its files were not removed
    reason: str | None = None


@dataclass(slots=True)
class _Batch:
    """The state of deleting some directories together."""

    token: str
    #: Redis time (ms) before the first one was held
    held_at: int = 0
    #: instances that are still to be deleted
    records: list[InstanceRecord] = field(default_factory=list)
    #: directories that are set aside
    aside: set[InstanceDirectory] = field(default_factory=set)
    #: directories that stay, and why
    stay: dict[InstanceDirectory, str] = field(default_factory=dict)


class Deletions:
    """Deletes instances of one namespace, with their files below one state root."""

    def __init__(
        self,
        instances: Instances,
        files: InstanceFiles,
        live_calls: LiveCalls,
        *,
        agents: Callable[[], Iterable[str]],
    ) -> None:
        self._instances = instances
        self._files = files
        self._live_calls = live_calls
        self._agents = agents

    def plan(self, record: InstanceRecord) -> InstanceRemoval:
        """Describe the deletion of an instance."""
        return InstanceRemoval(
            instance_key=record.key,
            workspace=record.workspace or record.directory.workspace,
            agents=record.agents,
            path=str(self._files.path(record.directory)),
            files=self._where(record),
        )

    def reasons(
        self,
        records: Sequence[InstanceRecord],
        calls: Iterable[LiveCall],
        leaving: Collection[InstanceDirectory] = (),
    ) -> dict[InstanceDirectory, str]:
        """Return the instances that must stay, with the reason: a live call, or another instance inside.

        An instance inside does not count if it is ``leaving``, too.
        """
        by_name = {encoded(call.instance_key): call for call in calls}
        found = {}
        for record in records:
            call = by_name.get(record.directory.name)
            if call is not None:
                found[record.directory] = f"call {call.id} of agent {call.agent!r} has not ended"
        for record in records:
            if record.directory not in found and (guest := self._guest(record, set(leaving) - found.keys())):
                found[record.directory] = f"{guest} works in its directory"
        return found

    def run(
        self, records: Sequence[InstanceRecord], unused_since: float | None = None
    ) -> Iterator[InstanceRemoval]:
        """Delete instances that are not in use; yield the outcome of each.

        With ``unused_since``, only those not used after that (ms, Redis time). Instances with guests come
        last, because their guests may be deleted too.
        """
        for has_guests in (False, True):
            some = [record for record in records if bool(record.guests) is has_guests]
            for start in range(0, len(some), DIRECTORIES_AT_ONCE):
                yield from self._run_batch(some[start : start + DIRECTORIES_AT_ONCE], unused_since)

    def leave(self, record: InstanceRecord, agent: str) -> str | None:
        """Delete one agent's part of an instance that other agents share; return why it stays, if it does."""
        directory, token = record.directory, uuid.uuid4().hex
        [hold] = self._instances.hold([directory], token)
        if hold.word != "held":
            return _BUSY
        reason = self._leave_held(record, agent, token, hold)
        if reason is not None:
            with suppress(OSError):  # unlikely, as they were renamed a moment ago
                self._files.give_back(directory, token)
            self._instances.let_go([directory], token)
        return reason

    def settle(self, directory: InstanceDirectory, tokens: Iterable[str]) -> None:
        """Restore files that interrupted deletions have set aside.

        Raises:
            OSError: they cannot be renamed.
        """
        for token in tokens:
            self._files.give_back(directory, token)
            self._instances.settled(directory, token)

    def _settle_held(self, directory: InstanceDirectory, token: str) -> bool:
        """Renew a hold, and restore what earlier deletions have set aside; false if the hold is lost.

        Files are set aside directly after this. Those that a process sets aside after the end of its hold
        would not be restored if it died then.

        Raises:
            OSError: the files cannot be renamed.
        """
        while True:
            [hold] = self._instances.hold([directory], token)
            earlier = [one for one in hold.aside if one != token]
            if hold.word != "held" or not earlier:
                return hold.word == "held"
            self.settle(directory, earlier)

    def _leave_held(self, record: InstanceRecord, agent: str, token: str, hold: Hold) -> str | None:
        directory = record.directory
        try:
            if not self._settle_held(directory, token):
                return _BUSY
        except OSError as error:
            return _unmovable(error)
        with suppress(OSError):  # never follow a link
            if self._where(record) == "here":
                self._files.set_agent_aside(directory, agent, token)
        calls = [*self._live_calls.all(), *self._live_calls.since(hold.now, [agent])]
        own = [call for call in calls if call.agent == agent]
        if reasons := self.reasons([replace(record, guests=())], own):
            return reasons[directory]
        part = record.part(agent)
        if part is None or not self._instances.leave(directory, part, token):
            return "it was used again"
        with suppress(OSError):
            self._files.remove_agent(directory, agent, token)
        return None

    def _run_batch(
        self, records: Sequence[InstanceRecord], unused_since: float | None
    ) -> Iterator[InstanceRemoval]:
        batch = _Batch(uuid.uuid4().hex)
        self._hold(batch, records, unused_since)
        # read again, now that they cannot change
        batch.records = list(self._instances.records(record.directory for record in batch.records))
        self._let_stay(batch, self.reasons(batch.records, self._live_calls.all()))
        self._set_aside(batch)
        calls = [*self._live_calls.all(), *self._live_calls.since(batch.held_at, self._agents())]
        self._let_stay(batch, self.reasons(batch.records, calls))
        self._forget(batch)
        for record in records:
            yield self._outcome(batch, record)

    def _hold(self, batch: _Batch, records: Sequence[InstanceRecord], unused_since: float | None) -> None:
        holds = self._instances.hold([record.directory for record in records], batch.token, unused_since)
        batch.held_at = min(hold.now for hold in holds)
        for record, hold in zip(records, holds, strict=True):
            if hold.word == "held":
                batch.records.append(record)
            else:
                batch.stay[record.directory] = _BUSY if hold.word == "busy" else "it was used again"

    def _set_aside(self, batch: _Batch) -> None:
        faults = {}
        for record in batch.records:
            try:
                if not self._settle_held(record.directory, batch.token):
                    faults[record.directory] = _BUSY
                elif self._where(record) == "here" and self._files.set_aside(record.directory, batch.token):
                    batch.aside.add(record.directory)
            except OSError as error:
                faults[record.directory] = _unmovable(error)
        self._let_stay(batch, faults)

    def _let_stay(self, batch: _Batch, reasons: Mapping[InstanceDirectory, str]) -> None:
        for directory in reasons:
            with suppress(OSError):  # unlikely, as it was renamed a moment ago
                self._files.give_back(directory, batch.token)
        self._instances.let_go(list(reasons), batch.token)
        batch.stay.update(reasons)
        batch.records = [record for record in batch.records if record.directory not in reasons]

    def _forget(self, batch: _Batch) -> None:
        """Drop instances from the table, except those whose hold has expired."""
        lost = [record for record in batch.records if not self._instances.forget(record, batch.token)]
        self._let_stay(batch, {record.directory: "it was used again" for record in lost})

    def _outcome(self, batch: _Batch, record: InstanceRecord) -> InstanceRemoval:
        planned = self.plan(record)
        if record.directory in batch.stay:
            return planned.model_copy(update={"reason": batch.stay[record.directory]})
        if record.directory not in batch.aside:
            return planned.model_copy(update={"removed": True})
        with suppress(OSError):
            if self._files.remove(record.directory, batch.token):
                return planned.model_copy(update={"removed": True, "files": "removed"})
        reason = "not all of its files could be removed; `goondan gc` tries again"
        return planned.model_copy(update={"removed": True, "files": "left", "reason": reason})

    def _where(self, record: InstanceRecord) -> Literal["here", "absent", "elsewhere"]:
        """Return where the files are; a directory of the same name may belong to another system."""
        roots = {part.root_id for part in record.parts if part.root_id}
        if roots and self._files.root_id not in roots:
            return "elsewhere"
        if record.parts and not roots:
            return "absent"  # it was never opened
        return "here" if self._files.is_there(record.directory) else "absent"

    def _guest(self, record: InstanceRecord, leaving: Collection[InstanceDirectory]) -> str | None:
        found = self._instances.records(directory for directory, _ in record.guests)
        guests = {guest.directory: guest for guest in found}
        for directory, agent in record.guests:
            guest = guests.get(directory)
            if guest is None:
                return f"instance {str(directory)!r} of agent {agent!r}, whose record is damaged"
            part = guest.part(agent)
            if directory not in leaving and part is not None and part.cwd is not None:
                return f"instance {guest.key!r} of agent {agent!r}"
        return None


def _unmovable(error: OSError) -> str:
    return f"its directory cannot be renamed: {error.strerror}"


#: files that were set aside are removed only after this time: the deletion may still run, also that of a
#: system with another Redis and the same state root
ASIDE_SECONDS = 3600.0

_BUSY = "it is being deleted"
_ELSEWHERE = "its files are not below this machine's state root"


class Housekeeping:
    """Lists and deletes the instances of one namespace, with their files below one state root."""

    def __init__(self, ledger: Ledger, state_root: Path, agents: Callable[[], Iterable[AgentRecord]]) -> None:
        self._table = Instances(ledger.redis, ledger.keys)
        self._files = InstanceFiles(state_root)
        self._live_calls = LiveCalls(ledger)
        self._agents = agents
        self._deletions = Deletions(
            self._table,
            self._files,
            self._live_calls,
            agents=lambda: [agent.name for agent in agents()],
        )

    def infos(self, agent: str | None = None, instance_key: str | None = None) -> list[InstanceInfo]:
        """Return the instances of one agent or of all, under one key or all, the last used first."""
        directories = None if instance_key is None else self._table.directories_of(instance_key)
        infos = [info for record in self._table.records(directories) for info in record.infos()]
        wanted = [info for info in infos if agent in {None, info.target}]
        return sorted(wanted, key=lambda info: info.last_used_at, reverse=True)

    def latest(self, agent: str | None, containing: str, limit: int) -> list[InstanceInfo]:
        """Return the instances used last whose keys contain a text, the last used first.

        Only their records are read, and those of the instances of other agents between them.
        """
        part = encoded(containing) if containing else ""
        directories = [one for one in reversed(self._table.directories()) if one.may_contain(part)]
        infos = (
            info
            for record in self._table.records(directories)
            for info in sorted(record.infos(), key=lambda info: info.last_used_at, reverse=True)
            if agent in {None, info.target} and containing in info.instance_key
        )
        return list(itertools.islice(infos, limit))

    def directory(self, instance_key: str, agent: str) -> Path:
        """Return the directory of an agent's instance, in the workspace in which it was used last.

        Raises:
            InstanceNotFoundError: it does not exist.
            ConversationError: it is not below this state root.
        """
        return self._directory(instance_key, agent)[0]

    def workdir(self, instance_key: str, agent: str) -> Path:
        """Return the workdir of an agent's instance; raises as :meth:`directory`."""
        directory, record = self._directory(instance_key, agent)
        cwd = next((part.cwd for part in record.parts if part.agent == agent), None)
        return directory / "workspace" if cwd is None else directory.parent / cwd

    def _directory(self, instance_key: str, agent: str) -> tuple[Path, InstanceRecord]:
        records = self._records_of(instance_key, agent)
        if not records:
            raise _not_found(instance_key, agent)
        record = max(records, key=lambda record: record.last_used_at)
        plan = self._deletions.plan(record)
        if plan.files == "elsewhere":
            raise ConversationError(
                f"The files of instance {instance_key!r} are not below this machine's state root "
                f"({self._files.state_root}): the worker of {agent!r} keeps them below another one.",
                suggestion="Look on the worker's machine, or set GOONDAN_STATE_ROOT as it is set there.",
            )
        return Path(plan.path), record

    def delete(
        self, instance_key: str, agent: str | None = None, *, dry_run: bool = False
    ) -> list[InstanceRemoval]:
        """Delete an instance and its files, or only one agent's part of it, in all workspaces.

        Raises:
            InstanceNotFoundError: it does not exist.
            InstanceBusyError: it has live calls, or another instance works in its directory.
        """
        records = self._records_of(instance_key, agent)
        if not records:
            raise _not_found(instance_key, agent)
        self._require_free(records, agent)
        if dry_run:
            return [self._part(record, agent) for record in records]
        shared = [record for record in records if agent is not None and record.agents != (agent,)]
        removals = [self._leave(record, agent or "") for record in shared]
        removals += self._deletions.run([record for record in records if record not in shared])
        if not any(removal.removed for removal in removals):
            raise _busy(instance_key, removals[0].reason)
        return removals

    def collect(
        self, older_than_seconds: float, *, workspace: str | None = None, dry_run: bool = False
    ) -> Iterator[InstanceRemoval]:
        """Delete the instances that have been unused for this long; yield the outcome of each.

        Instances with live calls count as used now. Instances with another one inside, and those whose files
        are on another machine, stay. Files that interrupted deletions have left are removed, too.
        """
        cutoff = self._table.now() - older_than_seconds * 1000
        records = [
            record
            for record in self._table.records(self._table.unused_since(cutoff))
            if record.parts and workspace in {None, record.workspace}
        ]
        calls = self._live_calls.all() if records else []
        stay = self._deletions.reasons(records, calls, leaving={record.directory for record in records})
        if not dry_run:
            self._table.touch(list(stay))
            self._remove_abandoned()
        plans = {record.directory: self._deletions.plan(record) for record in records}
        stay |= {directory: _ELSEWHERE for directory, plan in plans.items() if plan.files == "elsewhere"}
        for directory, reason in stay.items():
            yield plans[directory].model_copy(update={"reason": reason})
        free = [record for record in records if record.directory not in stay]
        if dry_run:
            yield from (plans[record.directory] for record in free)
        else:
            yield from self._deletions.run(free, cutoff)

    def collect_unlisted(
        self, older_than_seconds: float, *, dry_run: bool = False
    ) -> Iterator[InstanceRemoval]:
        """Delete directories that are not in the table and have not changed for this long.

        They may belong to a system with another Redis and the same state root and workspace.
        """
        latest = time.time() - older_than_seconds
        cutoff = self._table.now() - older_than_seconds * 1000  # for those that get listed meanwhile
        listed = set(self._listed())
        found = [
            InstanceRecord(directory)
            for workspace in self._workspaces()
            for directory in self._files.directories(workspace)
            if directory not in listed and self._files.newest(directory) <= latest
        ]
        stay = self._deletions.reasons(found, self._live_calls.all() if found else [])
        free = [record for record in found if record.directory not in stay]
        yield from map(self._deletions.plan, free) if dry_run else self._deletions.run(free, cutoff)

    def _records_of(self, instance_key: str, agent: str | None) -> list[InstanceRecord]:
        """Return the instances of a key, including those that are only a directory."""
        records = list(self._table.records(self._table.directories_of(instance_key)))
        wanted = [record for record in records if agent in {None, *record.agents}]
        if records or agent is not None:
            return wanted
        directories = [
            InstanceDirectory(workspace, encoded(instance_key)) for workspace in self._workspaces()
        ]
        return [
            InstanceRecord(directory, key=instance_key)
            for directory in directories
            if self._files.is_there(directory)
        ]

    def _require_free(self, records: list[InstanceRecord], agent: str | None) -> None:
        calls = self._live_calls.all()
        for record in records:
            if agent is None or record.agents == (agent,):
                reasons = self._deletions.reasons([record], calls)
            else:  # the others keep the directory, so only this agent's calls count
                own = [call for call in calls if call.agent == agent]
                reasons = self._deletions.reasons([replace(record, guests=())], own)
            if reasons:
                raise _busy(record.key or "", reasons[record.directory])

    def _leave(self, record: InstanceRecord, agent: str) -> InstanceRemoval:
        reason = self._deletions.leave(record, agent)
        return self._part(record, agent).model_copy(update={"removed": reason is None, "reason": reason})

    def _part(self, record: InstanceRecord, agent: str | None) -> InstanceRemoval:
        """Describe a deletion; that of one agent's part leaves the directory to the others."""
        plan = self._deletions.plan(record)
        if agent is None or record.agents == (agent,):
            return plan
        return plan.model_copy(update={"agents": (agent,), "files": "kept"})

    def _remove_abandoned(self) -> None:
        for workspace in self._workspaces():
            for directory, token in self._files.left_aside(workspace):
                for record in self._table.records([directory]):
                    if token not in record.tokens and self._files.aside_for(directory, token) > ASIDE_SECONDS:
                        self._files.remove(directory, token)

    def _listed(self) -> Iterator[InstanceDirectory]:
        directories = self._table.directories()
        yield from directories  # those of damaged records, too
        for record in self._table.records(directories):
            yield from (record.directory.beside(part.cwd) for part in record.parts if part.cwd)

    def _workspaces(self) -> list[str]:
        """Return the directory names of the agents' workspaces."""
        return sorted({encoded(agent.workspace) for agent in self._agents()})


def _not_found(instance_key: str, agent: str | None) -> InstanceNotFoundError:
    whose = "" if agent is None else f" of agent {agent!r}"
    return InstanceNotFoundError(f"No instance {instance_key!r}{whose}.")


def _busy(instance_key: str, reason: str | None) -> InstanceBusyError:
    return InstanceBusyError(f"Instance {instance_key!r} was not deleted: {reason}.")
