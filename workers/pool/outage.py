"""Outages of Redis, as the lead waits them out: each reason is logged once, with a pause between attempts."""

from time import sleep
from typing import Any

import structlog
from redis.exceptions import RedisError

from broker_config.pipelined_writer import PAUSE_SECONDS
from broker_config.refusals import is_script_fault, refusal_text

logger = structlog.get_logger(__name__)


class Outage:
    """The reasons why Redis has accepted no commands since its last answer."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()
        self.must_pause = False

    def note_answer(self, answer: Any) -> None:
        """Note the answer to a script call, or its error; a fault of the script's keys is no outage."""
        if not isinstance(answer, RedisError):
            self._reasons.clear()
        elif not is_script_fault(answer):
            self.note_error(answer)

    def note_error(self, error: RedisError) -> None:
        """Log that Redis has refused something or cannot be reached, and pause before the next attempt."""
        reason = refusal_text(error)
        if reason not in self._reasons:  # each once, not twice a second
            self._reasons.add(reason)
            logger.warning("Redis accepts no commands, trying again: %s", reason)
        self.must_pause = True

    def pause(self) -> None:
        """Pause, once, if the last attempt has failed."""
        if self.must_pause:
            self.must_pause = False
            sleep(PAUSE_SECONDS)
