"""Whether an agent's workers have finished a run lately."""

from importlib.resources import files

from broker_config.scripts import Errand, Script, run_errand
from goondan_tasks.ledger.ledger import Ledger

#: how many of the calls that have ended are looked at
MOST_ENDED = 50


class Successes:
    """The finished runs of one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._ended = Script.read(files("goondan_tasks.orchestrator") / "scripts", "ended")

    def has_any(self, agent: str, since: int) -> bool:
        """Say whether a worker of the agent has finished a run since ``since`` (ms, Redis time).

        However many of its latest 10,000 calls still wait. A result that a sweep or an orchestrator has made
        tells nothing about workers: it has no start.
        """
        keys = self._ledger.keys
        errand = Errand(self._ended, [keys.calls(agent)], [keys.call(""), since, MOST_ENDED])
        return any(self._was_run(call_id.decode()) for call_id in run_errand(self._ledger.redis, errand))

    def _was_run(self, call_id: str) -> bool:
        try:
            result = self._ledger.result(call_id)
        except ValueError:  # a newer version's: that worker is well
            return True
        return result is not None and result.meta.started_at is not None
