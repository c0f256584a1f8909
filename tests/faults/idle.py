"""What Redis may still hold when every call has its result."""

from redis import Redis

from broker_config.keys import Keys
from broker_config.queues import IN_FLIGHT, IN_FLIGHT_INDEX
from tests.waiting import wait_until

AGENT_QUEUE = "agent.tester"


def leftovers(redis_url: str) -> dict[str, int]:
    """Count what must be gone once nothing runs: messages, reservations, claims, deadlines."""
    keys = Keys()
    with Redis.from_url(redis_url) as redis:
        counts = {
            "queue": redis.llen(AGENT_QUEUE),
            IN_FLIGHT: redis.hlen(IN_FLIGHT),
            IN_FLIGHT_INDEX: redis.zcard(IN_FLIGHT_INDEX),
            "unacked": redis.hlen("unacked"),
            "unacked_index": redis.zcard("unacked_index"),
            "running": redis.zcard(keys.running("tester")),
            "due": redis.zcount(keys.due, "-inf", "(inf"),  # without the marks of agents
        }
    return {name: int(count) for name, count in counts.items() if count}


def wait_until_idle(redis_url: str, seconds: float = 30) -> None:
    """Return as soon as nothing is left; fail the test, saying what is, if that is not within ``seconds``."""
    wait_until(lambda: not leftovers(redis_url), seconds, show=lambda: leftovers(redis_url))


def keys_without_ttl(redis_url: str) -> list[str]:
    """List our own keys that would live for ever."""
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        return [key for key in redis.scan_iter(f"{Keys().namespace}:*") if redis.ttl(key) == -1]
