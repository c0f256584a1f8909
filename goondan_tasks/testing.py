"""Real workers on a private Redis, for tests of a bundle.

::

    from goondan_tasks.testing import LocalStack

    def test_the_coder_lists_files():
        with LocalStack("my-bundle", agents=["coder"]) as stack:
            result = stack.client.call("coder", "bash__exec", {"command": "ls"}, timeout=30)
            assert result.status == "ok"

Everything ends with the ``with`` block, and with the process that holds it, ``kill -9`` included.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from broker_config.embedded import EmbeddedRedis
from broker_config.options import CONCURRENCY
from broker_config.process_group import ProcessGroup, end_processes
from broker_config.settings import PREFIX, Settings
from goondan_tasks.bundle import load_bundle
from goondan_tasks.client import Client
from goondan_tasks.contract.errors import AgentUnavailableError, require_extra
from goondan_tasks.orchestrator.supervisor import PROGRAM

__all__ = ["LocalStack"]

#: the limit of a worker's start
START_SECONDS = 60.0
#: how long workers may take to stop at the end of the block before they are killed
EXIT_SECONDS = 5.0
#: how long a worker may take to stop after the grace period of its running calls
STOP_MARGIN_SECONDS = 10.0

_POLL_SECONDS = 0.02
_LOG_LINES = 30


class LocalStack:
    """A private Redis and real worker processes, started and ended by a ``with`` statement.

    Each of the ``workers`` processes serves ``agents`` (default: all of the Swarm) and runs up to
    ``concurrency`` calls at once. With ``apart`` each agent has ``workers`` processes of its own. The
    workers get this process's environment, a temporary ``GOONDAN_STATE_ROOT`` and ``GOONDAN_CACHE_DIR``
    unless they are set, and ``environment``. The client has the same settings.
    """

    #: connected to :attr:`redis_url`, with the bundle's agents
    client: Client
    #: the private Redis; tests may freeze or kill its process
    redis: EmbeddedRedis

    def __init__(
        self,
        bundle: Path | str,
        agents: Iterable[str] | None = None,
        workers: int = 1,
        concurrency: int = CONCURRENCY,
        *,
        environment: Mapping[str, str] | None = None,
        apart: bool = False,
    ) -> None:
        self.bundle = Path(bundle).absolute()
        self._agents = None if agents is None else list(agents)
        self._worker_count = workers
        self._concurrency = concurrency
        self._environment = dict(environment or {})
        self._apart = apart
        self._resources = ExitStack()
        self._workers: list[subprocess.Popen[bytes]] = []
        self._logs: dict[int, Path] = {}

    @property
    def redis_url(self) -> str:
        """The URL of the private Redis, as ``GOONDAN_REDIS_URL`` takes it."""
        return self.redis.url

    @property
    def workers(self) -> list["subprocess.Popen[bytes]"]:
        """The worker processes, except those that :meth:`stop_worker` has ended."""
        return list(self._workers)

    @property
    def state_root(self) -> Path:
        """The state root of the workers; workdirs are below it."""
        return Path(self._worker_environment()["GOONDAN_STATE_ROOT"])

    def __enter__(self) -> Self:
        """Start everything and wait until the workers consume.

        Raises:
            ConfigError: the bundle is not valid, or the extra ``worker`` is not installed.
            SettingsError: a setting is not valid.
            EmbeddedRedisError: there is no redis-server, or it does not start.
            AgentUnavailableError: a worker does not start.
        """
        require_extra("worker,embedded", "celery", "httpx2", "typer")
        with ExitStack() as resources:
            self.redis = resources.enter_context(EmbeddedRedis())
            self._open_directory(resources)
            self.client = resources.enter_context(self._connect())
            resources.callback(lambda: end_processes(self._workers, EXIT_SECONDS))
            groups = [[agent] for agent in self._agents or []] if self._apart else [self._agents]
            self._wait_until_ready(
                [self._launch(agents, self._concurrency) for agents in groups * self._worker_count]
            )
            self._resources = resources.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def start_worker(
        self, agents: Iterable[str] | None = None, concurrency: int = CONCURRENCY
    ) -> "subprocess.Popen[bytes]":
        """Start one more worker, by default for the stack's agents, and wait until it consumes.

        Raises:
            AgentUnavailableError: it does not start.
        """
        process = self._launch(self._agents if agents is None else list(agents), concurrency)
        self._wait_until_ready([process])
        return process

    def stop_worker(self, process: "subprocess.Popen[bytes]") -> None:
        """End a worker with SIGTERM and wait; kill it after its grace period."""
        end_processes([process], self.client.settings.grace_seconds + STOP_MARGIN_SECONDS)
        self._workers.remove(process)

    def log(self, process: "subprocess.Popen[bytes]") -> str:
        """Return a worker's output so far."""
        return self._logs[process.pid].read_text("utf-8", "replace")

    def _open_directory(self, resources: ExitStack) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="goondan-stack-"))
        self._group = resources.enter_context(ProcessGroup(self._directory))

    def _connect(self) -> Client:
        ours = {
            "redis_url": self.redis_url,
            "bundle": self.bundle,
            "state_root": self.state_root,
        }
        settings = Settings.load(**{**_settings_in(self._environment), **ours})
        bundle = load_bundle(self.bundle)
        if self._agents is None:
            self._agents = list(bundle.agent_names(settings.swarm))
        return Client(settings, bundle)

    def _launch(self, agents: list[str] | None, concurrency: int) -> "subprocess.Popen[bytes]":
        chosen = [argument for agent in agents or [] for argument in ("--agent", agent)]
        log = self._directory / f"worker-{len(self._logs) + 1}.log"
        with log.open("wb") as output:
            process = self._group.start(
                [*PROGRAM, "worker", *chosen, "--concurrency", str(concurrency)],
                env=self._worker_environment(),
                output=output,
            )
        self._logs[process.pid] = log
        self._workers.append(process)
        return process

    def _worker_environment(self) -> dict[str, str]:
        return {
            "GOONDAN_STATE_ROOT": str(self._directory / "state"),
            "GOONDAN_CACHE_DIR": str(self._directory / "cache"),
            **os.environ,  # noqa: TID251 - a worker's environment is its user's
            **self._environment,
            "GOONDAN_REDIS_URL": self.redis_url,
            "GOONDAN_BROKER_URL": "",
            "GOONDAN_BUNDLE": str(self.bundle),
        }

    def _wait_until_ready(self, processes: list["subprocess.Popen[bytes]"]) -> None:
        deadline = time.monotonic() + START_SECONDS
        waiting = {process.pid: process for process in processes}
        while waiting:
            for worker in self.client.workers():
                waiting.pop(worker.pid, None)
            for process in waiting.values():
                self._check_start(process, deadline)
            time.sleep(_POLL_SECONDS)

    def _check_start(self, process: "subprocess.Popen[bytes]", deadline: float) -> None:
        if process.poll() is None and time.monotonic() < deadline:
            return
        ending = "does not consume" if process.returncode is None else f"ended with {process.returncode}"
        end = "\n".join(self.log(process).splitlines()[-_LOG_LINES:])
        raise AgentUnavailableError(
            f"The worker process {process.pid} {ending}. The end of its log:\n{end}",
            suggestion="Read the worker's log above; `goondan validate` checks the bundle.",
        )


def _settings_in(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings among environment variables, by the setting's name."""
    return {
        name.removeprefix(PREFIX).lower(): text
        for name, text in environment.items()
        if name.startswith(PREFIX)
    }
