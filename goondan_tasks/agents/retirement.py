"""Deleting instances so that nothing of a live one is lost, whatever happens in the middle.

A home is *held* in the table: nobody opens it, or spawns into it. Then the live calls are looked at, the
home is set aside on disk, and the calls are looked at again: a worker that has opened it lately runs calls
without asking, until it misses the directory. If one began meanwhile, everything is put back. Only then
the instance is forgotten, and its files are removed.

Whoever dies on the way leaves a hold that runs out, and maybe files that stand aside; whoever opens the
instance next puts them back. After it was forgotten they are waste, which the next collection removes.
"""

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from goondan_tasks.agents.home_files import HomeFiles
from goondan_tasks.agents.homes import Home, encoded
from goondan_tasks.agents.instance_record import InstanceRecord
from goondan_tasks.agents.instances import Hold, Instances
from goondan_tasks.agents.live_calls import LiveCall, LiveCalls
from goondan_tasks.messages import WireModel

#: how many homes are held at one time
BATCH = 200


class InstanceRemoval(WireModel):
    """What became of an instance, or would become of it."""

    #: ``None`` for a directory that the table does not know, whose key cannot be told
    instance_key: str | None
    workspace: str
    agents: tuple[str, ...]
    #: the instance's directory, below this machine's state root
    path: str
    removed: bool = False
    #: ``kept``: other agents work there; ``absent``: there are none; ``elsewhere``: below another state
    #: root; ``left``: they could not be removed
    files: Literal["here", "kept", "absent", "elsewhere", "removed", "left"] = "here"
    #: why it was not removed, or why its files were not
    reason: str | None = None


@dataclass(slots=True)
class _Batch:
    """Homes that are deleted together."""

    token: str
    #: Redis time (ms) before any of them was held
    held_at: int = 0
    #: those that are still to be deleted
    records: list[InstanceRecord] = field(default_factory=list)
    #: tokens of deletions before this one, that were left half-done
    half_done: dict[Home, tuple[str, ...]] = field(default_factory=dict)
    #: those whose files stand aside
    aside: set[Home] = field(default_factory=set)
    #: those that stay, and why
    stay: dict[Home, str] = field(default_factory=dict)


class Retirement:
    """Deletes instances of one namespace, with their files below one state root."""

    def __init__(
        self,
        instances: Instances,
        files: HomeFiles,
        live_calls: LiveCalls,
        *,
        agents: Callable[[], Iterable[str]],
    ) -> None:
        self._instances = instances
        self._files = files
        self._live_calls = live_calls
        self._agents = agents

    def plan(self, record: InstanceRecord) -> InstanceRemoval:
        """Describe an instance as one to be removed."""
        return InstanceRemoval(
            instance_key=record.key,
            workspace=record.workspace or record.home.workspace,
            agents=record.agents,
            path=str(self._files.path(record.home)),
            files=self._where(record),
        )

    def reasons(
        self, records: Sequence[InstanceRecord], calls: Iterable[LiveCall], leaving: Collection[Home] = ()
    ) -> dict[Home, str]:
        """Return why instances must stay, of those that must: a live call, or another instance inside.

        One inside does not count if it is among those ``leaving``, too.
        """
        by_name = {encoded(call.instance_key): call for call in calls}
        found = {}
        for record in records:
            call = by_name.get(record.home.name)
            if call is not None:
                found[record.home] = f"call {call.id} of agent {call.agent!r} has not ended"
        for record in records:
            if record.home not in found and (guest := self._guest(record, set(leaving) - found.keys())):
                found[record.home] = f"{guest} works in its directory"
        return found

    def run(
        self, records: Sequence[InstanceRecord], unused_since: float | None = None
    ) -> Iterator[InstanceRemoval]:
        """Delete instances, if nothing speaks against it, and say of each what became of it.

        With ``unused_since``, only those not used after that (ms, Redis time). Those with guests come
        last: these may be among the others.
        """
        for has_guests in (False, True):
            some = [record for record in records if bool(record.guests) is has_guests]
            for start in range(0, len(some), BATCH):
                yield from self._run_batch(some[start : start + BATCH], unused_since)

    def settle(self, home: Home, tokens: Iterable[str]) -> None:
        """Put files back that half-done deletions have left aside.

        Raises:
            OSError: they cannot be renamed.
        """
        for token in tokens:
            self._files.give_back(home, token)
            self._instances.settled(home, token)

    def _run_batch(
        self, records: Sequence[InstanceRecord], unused_since: float | None
    ) -> Iterator[InstanceRemoval]:
        batch = _Batch(uuid.uuid4().hex)
        self._hold(batch, records, unused_since)
        # what is registered now stays so: nobody can register in a home that is held
        batch.records = list(self._instances.records(record.home for record in batch.records))
        self._let_stay(batch, self.reasons(batch.records, self._live_calls.all()))
        self._set_aside(batch)
        calls = [*self._live_calls.all(), *self._live_calls.since(batch.held_at, self._agents())]
        self._let_stay(batch, self.reasons(batch.records, calls))
        self._forget(batch)
        for record in records:
            yield self._outcome(batch, record)

    def _hold(self, batch: "_Batch", records: Sequence[InstanceRecord], unused_since: float | None) -> None:
        holds = self._instances.hold([record.home for record in records], batch.token, unused_since)
        batch.held_at = min(hold.now for hold in holds)
        for record, hold in zip(records, holds, strict=True):
            if hold.word == "held":
                batch.records.append(record)
                batch.half_done[record.home] = hold.aside
            else:
                batch.stay[record.home] = _refusal(hold)

    def _set_aside(self, batch: "_Batch") -> None:
        faults = {}
        for record in batch.records:
            try:
                self.settle(record.home, batch.half_done[record.home])
                if self._where(record) == "here" and self._files.set_aside(record.home, batch.token):
                    batch.aside.add(record.home)
            except OSError as error:
                faults[record.home] = f"its directory cannot be renamed: {error.strerror}"
        self._let_stay(batch, faults)

    def _let_stay(self, batch: "_Batch", reasons: Mapping[Home, str]) -> None:
        for home in reasons:
            with suppress(OSError):  # a file system that let us rename it a moment ago
                self._files.give_back(home, batch.token)
        self._instances.let_go(list(reasons), batch.token)
        batch.stay.update(reasons)
        batch.records = [record for record in batch.records if record.home not in reasons]

    def _forget(self, batch: "_Batch") -> None:
        """Forget instances; one whose hold was lost, because this took too long, stays."""
        lost = [record for record in batch.records if not self._instances.forget(record, batch.token)]
        self._let_stay(batch, {record.home: "it was used again" for record in lost})

    def _outcome(self, batch: "_Batch", record: InstanceRecord) -> InstanceRemoval:
        planned = self.plan(record)
        if record.home in batch.stay:
            return planned.model_copy(update={"reason": batch.stay[record.home]})
        if record.home not in batch.aside:
            return planned.model_copy(update={"removed": True})
        if self._is_gone(record.home, batch.token):
            return planned.model_copy(update={"removed": True, "files": "removed"})
        reason = "not all of its files could be removed; `goondan gc` tries again"
        return planned.model_copy(update={"removed": True, "files": "left", "reason": reason})

    def _is_gone(self, home: Home, token: str) -> bool:
        try:
            return self._files.remove(home, token)
        except OSError:
            return False

    def _where(self, record: InstanceRecord) -> Literal["here", "absent", "elsewhere"]:
        """Say where the files are: what stands here under the same names may be another system's."""
        roots = {tenant.root_id for tenant in record.tenants if tenant.root_id}
        if roots and self._files.root_id not in roots:
            return "elsewhere"
        if record.tenants and not roots:
            return "absent"  # nobody has opened it
        return "here" if self._files.is_there(record.home) else "absent"

    def _guest(self, record: InstanceRecord, leaving: Collection[Home]) -> str | None:
        homes = [home for home, _ in record.guests]
        for (home, agent), guest in zip(record.guests, self._instances.records(homes), strict=True):
            tenant = guest.tenant(agent)
            if home not in leaving and tenant is not None and tenant.cwd is not None:
                return f"instance {guest.key!r} of agent {agent!r}"
        return None


def _refusal(hold: Hold) -> str:
    return "it is being deleted" if hold.word == "busy" else "it was used again"
