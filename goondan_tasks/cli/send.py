"""``goondan send``: tell an agent something that it does not answer."""

from goondan_tasks.cli.request import Agent, EventType, Input
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.cli.turn_options import Auth, Instance, Origin


@takes_session
def send(
    session: Session,
    agent: Agent,
    input: Input,
    instance: Instance = None,
    event_type: EventType = None,
    auth: Auth = None,
    origin: Origin = None,
) -> None:
    """Give an agent an event and print the id for `goondan trace` and `goondan result`.

    Ends with 0 as soon as the event stands in the agent's mailbox.
    """
    with session.client() as client:
        sent = client.send(
            agent, input, instance_key=instance, event_type=event_type, auth=auth, origin=origin
        )
    if session.output.as_json:
        return session.output.document(sent.to_wire())
    return session.output.print(sent.id)
