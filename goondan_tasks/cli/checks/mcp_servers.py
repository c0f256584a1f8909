"""How do the MCP servers fare, in the workers of their agents?"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from goondan_tasks.cli.checks.check import Check
from goondan_tasks.roster import McpServerRecord, WorkerRecord


def mcp_server_checks(workers: Iterable[WorkerRecord]) -> list[Check]:
    """Check each server of each agent, by what its workers say of it."""
    told: defaultdict[tuple[str, str], dict[str, McpServerRecord]] = defaultdict(dict)
    for worker in workers:
        for server in worker.mcp_servers:
            told[server.agent, server.name][worker.name] = server
    return [_check(agent, name, records) for (agent, name), records in sorted(told.items())]


def _check(agent: str, name: str, records: Mapping[str, McpServerRecord]) -> Check:
    title = f"MCP server {name} of {agent}"
    down = {worker: record for worker, record in records.items() if not record.is_up}
    if not down:
        tools = max(record.tools for record in records.values())
        return Check(title, "ok", f"{tools} tools; {_losses(records.values())}")
    worker, record = next(iter(down.items()))
    message = f"down in {worker}: {record.reason}"
    if len(records) > 1:
        message = f"down in {len(down)} of {len(records)} workers; {message.removeprefix('down ')}"
    remedy = "Correct the server, or its command, address or environment in the extension's config."
    return Check(title, "warning", message, remedy)


def _losses(records: Iterable[McpServerRecord]) -> str:
    times = sum(record.failures for record in records)
    return f"lost {times} times" if times else "never lost"
