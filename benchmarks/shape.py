"""The shape of a worker: how much it runs at once, and from which queues."""

from dataclasses import dataclass

USUAL_QUEUE = "bench"
#: the agents that ask and answer
HANDOFF_QUEUES = ("asker", "echo")
#: the agents with three middlewares, plain and async
LAYERED_QUEUES = ("plain-layered", "layered")
#: the agent with two hundred tools
STOCKED_QUEUE = "stocked"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a worker is asked for; ``prefetch`` is Celery's multiplier, where it can be chosen."""

    concurrency: int = 8
    queues: tuple[str, ...] = (USUAL_QUEUE,)
    prefetch: int = 1
    #: how many revisions of its bundle there are besides the first; 0: the bundle is in no repository
    revisions: int = 0


def many_queues(count: int) -> tuple[str, ...]:
    """Name so many queues, which are agents for ours."""
    return tuple(f"bench-{number:03}" for number in range(count))
