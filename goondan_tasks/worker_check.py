"""A container's own question whether its worker is well: ``python -m goondan_tasks.worker_check``.

A worker says so itself, to Redis, from the loop that also takes calls. So 0 means that a worker of this host
has said so in the last seconds, 1 that none has. While Redis is away nobody knows: that is 0 too, as a worker
goes on by itself when Redis is back, and to restart them all would help nobody.
"""

import sys
from socket import gethostname

from redis.exceptions import RedisError

from broker_config.connections import connect, reason_unreachable
from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.roster import Roster


def main() -> None:
    """Ask Redis, and end with the answer."""
    settings = Settings.load()
    try:
        with connect(settings.redis_url, name="goondan-check") as redis:
            hosts = {worker.host for worker in Roster(redis, Keys(settings.namespace)).workers()}
    except RedisError as error:
        sys.stderr.write(f"Not known: {reason_unreachable(settings.redis_url, error)}\n")
        return
    if gethostname() not in hosts:
        sys.exit(f"No worker of {gethostname()} has said lately that it takes calls.")


if __name__ == "__main__":
    main()
