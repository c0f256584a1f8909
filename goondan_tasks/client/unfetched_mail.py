"""Mailboxes whose events nobody fetches: of agents whose brain is elsewhere, and is not there."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from redis import Redis

from broker_config.keys import Keys

#: the mailboxes of an agent that are looked at, the longest unserved first
LOOKED_AT = 100


@dataclass(frozen=True, slots=True)
class UnfetchedMail:
    """How many mailboxes of an agent nobody has served for long, and for how long that is at most."""

    agent: str
    mailboxes: int
    seconds: float


def read_unfetched_mail(
    redis: Redis, keys: Keys, agents: Iterable[str], *, older_than_seconds: float
) -> list[UnfetchedMail]:
    """Read which of these agents have events that have waited so long while nobody receives."""
    seconds, micros = redis.time()
    now = seconds * 1000 + micros // 1000
    waiting = [_unserved(redis, keys, agent, now, older_than_seconds * 1000) for agent in agents]
    return [mail for mail in waiting if mail is not None and not _receivers(redis, keys, mail.agent)]


def _unserved(redis: Redis, keys: Keys, agent: str, now: int, age_ms: float) -> UnfetchedMail | None:
    boxes = cast(
        "list[tuple[bytes, float]]",
        redis.zrangebyscore(
            keys.mailboxes(agent), "-inf", now - age_ms, start=0, num=LOOKED_AT, withscores=True
        ),
    )
    with redis.pipeline(transaction=False) as pipe:
        for box, _ in boxes:
            pipe.lindex(keys.mailbox(box.decode()), 0)
        firsts = pipe.execute()
        for first in firsts:
            pipe.hget(keys.call((first or b"").decode()), "status")
        statuses = pipe.execute()
    since = [at for (_, at), status in zip(boxes, statuses, strict=True) if status == b"queued"]
    return UnfetchedMail(agent, len(since), (now - min(since)) / 1000) if since else None


def _receivers(redis: Redis, keys: Keys, agent: str) -> int:
    """Return how many wait for news of the agent's mailboxes just now (``MailWatch``)."""
    ((_, count),) = redis.pubsub_numsub(keys.mail(agent))
    return int(count)
