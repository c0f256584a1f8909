"""``goondan shutdown``: asks workers to drain and end, without a signal."""

from typing import Annotated

import typer

from goondan_tasks.cli.session import Session, takes_session


@takes_session
def shutdown(
    session: Session,
    agent: Annotated[
        str | None, typer.Option(metavar="A", help="The agent whose workers are to drain.")
    ] = None,
    worker: Annotated[
        str | None, typer.Option(metavar="NAME", help="The one worker, as `goondan agents` names it.")
    ] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="What their logs are to say.")] = "",
) -> None:
    """Ask the workers of an agent, or one worker, to drain as they do on SIGTERM, within seconds.

    A worker of several agents goes on for the others. Where an orchestrator or a platform keeps workers
    running, new ones take their place: a restart in order.
    """
    if bool(agent) == bool(worker):
        raise typer.BadParameter("Name either an agent (--agent) or a worker (--worker).")
    with session.client() as client:
        if worker is not None and worker not in {one.name for one in client.workers()}:
            raise typer.BadParameter(f"There is no worker {worker!r}; `goondan agents` names them.")
        asked = [one.name for one in client.shutdown(agent, worker, reason)]
    if session.output.as_json:
        return session.output.document({"asked": asked})
    return session.output.print("\n".join(asked) or "There is no worker to ask.")
