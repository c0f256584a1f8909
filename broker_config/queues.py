"""Queue and task names (frozen): one queue for an agent's tool calls, one for its events."""

TOOL_CALL_TASK = "goondan.tool_call"
DELEGATE_TASK = "goondan.delegate"
DELEGATE_RESULT_TASK = "goondan.delegate_result"
EVENT_TASK = "goondan.event"

#: each queue has a wake-up key, a list on which idle workers wait
WAKE_UP_SUFFIX = ".bell"

_PREFIX = "agent."
_EVENTS = ".events"


def call_queue(agent_name: str) -> str:
    """Return the queue of an agent's tool calls: ``agent.<name>``."""
    return f"{_PREFIX}{agent_name}"


def events_queue(agent_name: str) -> str:
    """Return the queue of an agent's events: ``agent.<name>.events``."""
    return f"{_PREFIX}{agent_name}{_EVENTS}"


def is_events_queue(queue: str) -> bool:
    """Return whether a queue is one of events."""
    return queue.endswith(_EVENTS)


def wake_up_key(queue: str) -> str:
    """Return the list that producers push to when they wake a worker that waits for ``queue``."""
    return f"{queue}{WAKE_UP_SUFFIX}"


def agent_of(queue: str) -> str | None:
    """Return the agent that a queue belongs to, ``None`` for a queue that is not ours."""
    if not queue.startswith(_PREFIX):
        return None
    return queue.removeprefix(_PREFIX).removesuffix(_EVENTS)
