"""The pool that Celery is given: the composition root makes its parts."""

from broker_config.settings import Settings
from goondan_tasks.client.known_agents import broker_errors
from goondan_tasks.contract.errors import BrokerUnreachableError, ConfigError, OAuthStoreError
from workers.pool.pool import CallPool
from workers.pool.refusal import refuse
from workers.runtime import WorkerRuntime, process_runtime


class WorkerPool(CallPool):
    """The pool of this process's runtime."""

    def start_process(self) -> WorkerRuntime:
        """Return this process's runtime.

        Raises:
            SystemExit: the bundle is not valid or Redis cannot be reached, although the command line has just
                checked both; or the OAuth store cannot be used.
        """
        try:
            with broker_errors(Settings.load().redis_url):
                return process_runtime()
        except (ConfigError, BrokerUnreachableError, OAuthStoreError) as error:
            refuse(error)
