"""Goondan Workers, by its public surface: the client and the command line."""

from collections.abc import Sequence

from benchmarks import workload
from benchmarks.workload import PATIENCE_SECONDS, Call, Wire
from goondan_tasks.client import Client, PendingCall


class GoondanProducer:
    """Submits by :meth:`Client.submit` and :meth:`Client.submit_many`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit_each(self, calls: Sequence[Call]) -> list[PendingCall]:
        """Submit the calls one by one."""
        submit = self._client.submit
        return [submit(call.queue, f"bench__{call.name}", call.args, tool_call_id=call.id) for call in calls]

    def submit_batch(self, calls: Sequence[Call]) -> list[PendingCall]:
        """Submit the calls in one trip."""
        return self._client.submit_many(
            {
                "agentName": call.queue,
                "toolName": f"bench__{call.name}",
                "args": call.args,
                "toolCallId": call.id,
            }
            for call in calls
        )

    def ask(self, input: Wire) -> Wire:
        """Ask the agent that measures."""
        response: Wire = self._client.request("asker", input, timeout=PATIENCE_SECONDS).response
        return response

    def open_step(self, queue: str) -> int:
        """Open the first Step of a new Turn."""
        return len(self._client.turn(queue).step(timeout=PATIENCE_SECONDS).catalog)

    def outputs(self, handles: Sequence[PendingCall]) -> list[Wire]:
        """Wait for the results, in order."""
        return [handle.result(PATIENCE_SECONDS).output for handle in handles]


def open_producer() -> GoondanProducer:
    """Connect; bundle and settings come from ``GOONDAN_*``."""
    return GoondanProducer(Client.connect(workload.redis_url()))
