"""``goondan agents``: whom one can call, and who works for them."""

from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.messages import JsonObject
from goondan_tasks.roster import AgentRecord, WorkerRecord


@takes_session
def agents(session: Session) -> None:
    """List the agents that can be called: those of the bundle, and those that workers have announced."""
    with session.client() as client:
        records, workers = client.agents(), client.workers()
    rows = [_described(record, workers) for record in records.values()]
    if session.output.as_json:
        return session.output.document(rows)
    return session.output.table(
        ("agent", "swarm", "workspace", "tools", "workers"),
        [
            (
                row["name"],
                row["swarm"],
                row["workspace"],
                len(row["tools"]),
                ", ".join(row["workers"]) or None,
            )
            for row in rows
        ],
    )


def _described(record: AgentRecord, workers: list[WorkerRecord]) -> JsonObject:
    return {
        "name": record.name,
        "swarm": record.swarm,
        "workspace": record.workspace,
        "tools": [item["name"] for item in record.catalog],
        "workers": [worker.name for worker in workers if record.name in worker.agents],
    }
