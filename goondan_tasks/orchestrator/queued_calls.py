"""The calls and requests that wait for an agent's workers, seen from outside, and ended from there."""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from importlib.resources import files

from broker_config.scripts import Errand, Script, run_errand
from goondan_tasks.clocks import wall_clock
from goondan_tasks.errors import GoondanError
from goondan_tasks.ledger.dead_letters import batches
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import CallRecord, Claim, Verdict
from goondan_tasks.ledger.settlement import Settlement
from goondan_tasks.limits.limiter import Limiter
from goondan_tasks.names import DELEGATE_RESULT_TOOL, EVENT_TOOL, EVENT_TOOLS
from goondan_tasks.roster import AgentRecord
from goondan_tasks.run import Run

#: events that nobody waits for: they stay for the next worker
UNAWAITED_TOOLS = frozenset({EVENT_TOOL, DELEGATE_RESULT_TOOL})

#: how many calls of an agent are ended at once; the others have their turn a second later
MOST_AT_ONCE = 500


class QueuedCalls:
    """What waits for the agents of one ledger. ``name`` stands as the worker in the results it makes."""

    def __init__(self, ledger: Ledger, settlement: Settlement, name: str) -> None:
        self._ledger = ledger
        self._settlement = settlement
        self._limiter = Limiter(ledger)
        self._name = name
        folder = files("goondan_tasks.orchestrator") / "scripts"
        self._queued, self._take = Script.read(folder, "queued"), Script.read(folder, "take")
        #: by agent, what was looked at and stays
        self._staying: defaultdict[str, set[str]] = defaultdict(set)

    def ids(self, agent: str, *, with_events: bool = True) -> list[str]:
        """Return the ids of what waits for the agent, of its latest 10,000 calls, the oldest first."""
        keys = self._ledger.keys
        arguments = [keys.call(""), int(with_events)]
        found = run_errand(self._ledger.redis, Errand(self._queued, [keys.calls(agent)], arguments))
        return [call_id.decode() for call_id in found]

    def has_any(self, agent: AgentRecord) -> bool:
        """Say whether anything waits for a worker; events of an agent without an entry wait for its brain."""
        return bool(self.ids(agent.name, with_events=agent.has_entry))

    def end(self, agent: AgentRecord, error: GoondanError) -> int:
        """End what somebody waits for, with ``error``; return how many calls and requests that were."""
        ids = self.ids(agent.name)
        staying = self._staying[agent.name]
        staying.intersection_update(ids)
        others = [call_id for call_id in ids if call_id not in staying][:MOST_AT_ONCE]
        return sum(self._end(batch, agent, error) for batch in batches(others))

    def _end(self, ids: list[str], agent: AgentRecord, error: GoondanError) -> int:
        records = {record.id: record for record in self._ledger.records(ids) if record is not None}
        # the requests to an agent without an entry wait for its brain, not for a worker
        kept = UNAWAITED_TOOLS if agent.has_entry else EVENT_TOOLS
        self._staying[agent.name].update(one.id for one in records.values() if one.call.tool_name in kept)
        claims = self._claims([one for one in records.values() if one.call.tool_name not in kept])
        for claim in claims:
            self._settlement.fail(claim, error)
            if records[claim.run.id].waiting_for is not None:
                self._limiter.forget(claim.run.id)
        return len(claims)

    def _claims(self, records: Sequence[CallRecord]) -> list[Claim]:
        """Take those that still wait."""
        calls = {record.id: record.call for record in records}
        settings, keys, token = self._ledger.settings, self._ledger.keys, uuid.uuid4().hex
        terms = [token, round(settings.lease_seconds * 1000), settings.result_ttl_seconds, keys.call("")]
        taken = run_errand(self._ledger.redis, Errand(self._take, [keys.due], [*terms, *calls]))
        runs = (
            Run(call_id.decode(), calls[call_id.decode()], self._name, attempt, queued_at, wall_clock)
            for call_id, attempt, queued_at in taken
        )
        return [Claim(run, token, Verdict.RUN) for run in runs]
