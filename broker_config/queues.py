"""Names of tasks and queues (frozen). Each agent has a queue of tool calls and a queue of events."""

TOOL_CALL_TASK = "goondan.tool_call"
DELEGATE_TASK = "goondan.delegate"
DELEGATE_RESULT_TASK = "goondan.delegate_result"
EVENT_TASK = "goondan.event"

#: the suffix of a queue's wake-up key, a list on which idle workers wait
WAKE_UP_SUFFIX = ".bell"

#: messages that have left their queues and are not acknowledged yet: a hash, and a zset of their tags by time
IN_FLIGHT = "agent.in-flight"
IN_FLIGHT_INDEX = "agent.in-flight.index"

_PREFIX = "agent."
_EVENTS = ".events"


def call_queue(agent_name: str) -> str:
    """Return the queue of an agent's tool calls: ``agent.<name>``."""
    return f"{_PREFIX}{agent_name}"


def events_queue(agent_name: str) -> str:
    """Return the queue of an agent's events: ``agent.<name>.events``."""
    return f"{_PREFIX}{agent_name}{_EVENTS}"


def is_events_queue(queue: str) -> bool:
    """Return whether a queue holds events; ``agent.events`` holds the calls of an agent named ``events``."""
    return queue.endswith(_EVENTS) and queue.startswith(_PREFIX) and len(queue) > len(_PREFIX) + len(_EVENTS)


def wake_up_key(queue: str) -> str:
    """Return the list that producers push to in order to wake a worker of ``queue``."""
    return f"{queue}{WAKE_UP_SUFFIX}"


def agent_of(queue: str) -> str | None:
    """Return the agent of a queue, ``None`` for a queue that is not ours."""
    if not queue.startswith(_PREFIX):
        return None
    return queue.removeprefix(_PREFIX).removesuffix(_EVENTS if is_events_queue(queue) else "")
