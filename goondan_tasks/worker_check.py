"""The health check of a worker's container: ``python -m goondan_tasks.worker_check``.

A worker reports to Redis from the loop that also takes calls. The check ends with 0 if a worker of this
host has reported in the last seconds, with 1 if none has. While Redis cannot be reached it ends with 0, too:
workers continue when Redis is back, and restarting all of them would not help.
"""

import sys
from socket import gethostname

from redis.exceptions import RedisError

from broker_config.connections import connect, reason_unreachable
from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.agent_registry import AgentRegistry


def main() -> None:
    """Ask Redis, and end with the answer."""
    settings = Settings.load()
    try:
        with connect(settings.redis_url, name="goondan-check") as redis:
            hosts = {worker.host for worker in AgentRegistry(redis, Keys(settings.namespace)).workers()}
    except RedisError as error:
        sys.stderr.write(f"Not known: {reason_unreachable(settings.redis_url, error)}\n")
        return
    if gethostname() not in hosts:
        sys.exit(f"No worker of {gethostname()} has said lately that it takes calls.")


if __name__ == "__main__":
    main()
