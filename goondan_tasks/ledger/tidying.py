"""Removal of the messages of ended calls from queues.

Workers drop such messages, too. Without a worker, or while its agent is paused, they would count as backlog
for ever.
"""

from collections.abc import Iterable
from importlib.resources import files

from broker_config.queues import call_queue, events_queue
from broker_config.scripts import Script, ScriptCall
from goondan_tasks.ledger.record import CallRecords

#: how many messages one script checks
BATCH = 500


def tidy_queues(ledger: CallRecords, agents: Iterable[str]) -> None:
    """Remove the messages of ended calls from the queues of these agents (``drop_ended.lua``)."""
    script = Script.read(files("goondan_tasks.ledger") / "scripts", "drop_ended")
    for queue in (queue for agent in agents for queue in (call_queue(agent), events_queue(agent))):
        passed, read = 0, BATCH
        while read == BATCH:
            arguments = [ledger.keys.call(""), passed, BATCH]
            drop: ScriptCall[list[int]] = ScriptCall(script, [queue], arguments)
            read, removed = drop.run(ledger.redis)
            passed += read - removed
