"""``goondan agents``: whom one can call, who works for them, and how they fare."""

from goondan_tasks.cli.answer import Answer
from goondan_tasks.cli.output import make_table
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.cli.watching import Watch, give
from goondan_tasks.client.agent_status import AgentState, AgentStatus

_COLUMNS = ("agent", "swarm", "workspace", "tools", "backlog", "running", "state", "workers")
NO_AGENT = "No agent is known: give --bundle PATH, or start a worker with `goondan worker`."


@takes_session
def agents(session: Session, watch: Watch = None) -> None:
    """List the agents that can be called: those of the bundle, and those that workers have announced.

    Their state is running, idle, starting, crashLoopBackOff or none, which means that there is no worker.
    On a narrow terminal swarm and workspace are left out.
    """
    with session.client() as client:
        return give(lambda: _answer(client.agent_statuses()), session.output, watch)


def _answer(statuses: list[AgentStatus]) -> Answer:
    document = [status.to_wire() for status in statuses]
    if not statuses:
        return Answer(document, None, (NO_AGENT,))
    table = make_table(_COLUMNS, map(_row, statuses), spare={"swarm", "workspace"})
    troubles = (_trouble(status) for status in statuses if status.state is AgentState.CRASH_LOOP)
    return Answer(document, table, tuple(troubles))


def _row(status: AgentStatus) -> tuple[object, ...]:
    record, queue = status.record, status.queue
    return (
        record.name,
        record.swarm,
        record.workspace,
        len(record.catalog),
        queue.backlog,
        queue.running,
        str(status.state) if status.workers or not status.is_orchestrated else _kept(status.state),
        ", ".join(worker.name for worker in status.workers) or None,
    )


def _kept(state: AgentState) -> str:
    """Say of an agent without workers that an orchestrator starts one when it is needed."""
    return "none, started when needed" if state is AgentState.NONE else str(state)


def _trouble(status: AgentStatus) -> str:
    when = status.next_start_seconds or 0
    return (
        f"\n{status.record.name}: {status.upkeep.crashes} workers in a row have crashed as soon as they "
        f"started; the next may start in {when:.0f} s.\n{status.upkeep.reason}"
    )
