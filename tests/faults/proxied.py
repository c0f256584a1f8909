"""Stacks whose Redis is elsewhere: behind a proxy for the workers, or at some URL for all."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from goondan_tasks.bundle import load_bundle
from goondan_tasks.client import Client
from goondan_tasks.testing import LocalStack
from tests.faults.proxy import Proxy


class ProxiedStack(LocalStack):
    """A stack without workers; those that are started go through :attr:`proxy`."""

    proxy: Proxy

    def _worker_environment(self) -> dict[str, str]:
        url = self.proxy.url if hasattr(self, "proxy") else self.redis_url
        return {**super()._worker_environment(), "GOONDAN_REDIS_URL": url}

    @contextmanager
    def client_beside(self) -> Iterator[Client]:
        """Make one more client, which goes through the proxy as the workers do."""
        settings = self.client.settings.model_copy(update={"redis_url": self.proxy.url})
        with Client(settings, load_bundle(self.bundle)) as client:
            yield client


class ElsewhereStack(LocalStack):
    """A stack whose Redis is the one at a URL."""

    def __init__(self, url: str, bundle: Path, *, workers: int, environment: Mapping[str, str]) -> None:
        self._url = url
        super().__init__(bundle, workers=workers, environment=environment)

    @property
    def redis_url(self) -> str:
        """The URL that was given."""
        return self._url


@contextmanager
def proxied_stack(bundle: Path, environment: Mapping[str, str]) -> Iterator[ProxiedStack]:
    """Start a Redis and the proxy before it."""
    with ProxiedStack(bundle, workers=0, environment=environment) as stack, Proxy(stack.redis_url) as proxy:
        stack.proxy = proxy
        yield stack
