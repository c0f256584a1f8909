"""Whether a change of the bundle's folder is one that the workers of ``goondan dev`` take by themselves."""

import threading
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.errors import GoondanError
from goondan_tasks.revisions.active import ActiveRevision
from goondan_tasks.revisions.checkouts import RevisionSource
from goondan_tasks.roster import AgentRecord

#: how long a commit may take from the first file that it changes here to its proposal
COMMIT_SECONDS = 2.0
LOOK_SECONDS = 0.2


def is_followed(
    bundle: Path, agent: AgentRecord, settings: Settings, redis: Redis, *, stop: threading.Event
) -> bool:
    """Say whether what stands in the folder is active in the workspace of ``agent``, or is proposed there.

    A commit changes the folder before it is proposed, so this waits a moment where revisions are followed.
    """
    record = ActiveRevision(redis, Keys(settings.namespace), agent.workspace)
    try:
        source = RevisionSource.of(bundle, settings.bundle_remote)
        for _ in range(round(COMMIT_SECONDS / LOOK_SECONDS)):
            state = record.state()
            if state is None:
                return False
            wanted = {state.active, state.proposed.new_ref if state.proposed else None}
            if str(source.current()) in wanted:
                return True
            if stop.wait(LOOK_SECONDS):
                return True
    except (GoondanError, RedisError, ValueError):
        return False  # whoever starts workers anew is told what is wrong
    return False
