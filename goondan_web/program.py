"""``goondan serve``: opens doors, and makes the application that serves them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from broker_config.connections import connect, reporting_outages
from broker_config.keys import Keys
from goondan_tasks.client.known_agents import broker_errors
from goondan_tasks.fleet.http_tokens import TokenStore
from goondan_web.application import Application, make_application
from goondan_web.door import Door, DoorContext

#: the function ``opened`` of a door's module
Opener = Callable[[DoorContext], AbstractContextManager[Door]]


@contextmanager
def opened_application(openers: Sequence[Opener], context: DoorContext, host: str) -> Iterator[Application]:
    """Open doors, and make the application that serves them on ``host``, for a ``with`` block.

    Raises:
        GoondanError: a door cannot be opened.
    """
    url = context.settings.redis_url
    with ExitStack() as doors, connect(url, name="goondan-serve") as redis:

        def ready() -> None:
            with broker_errors(url), reporting_outages():
                redis.ping()

        opened = [doors.enter_context(opener(context)) for opener in openers]
        table = TokenStore(redis, Keys(context.settings.namespace))
        yield make_application(opened, context.settings, host, ready, table)
