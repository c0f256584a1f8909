"""The providers of a bundle's Models."""

import asyncio
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import structlog

from goondan_tasks.bundle import Bundle
from goondan_tasks.contract.errors import GoondanError
from workers.thinking.providers import ModelProvider

logger = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ModelProviders:
    """The providers of one revision's Models, and the threads that load them."""

    bundle: Bundle
    _loading: list[threading.Thread] = field(default_factory=list, init=False)

    @cached_property
    def by_model(self) -> Mapping[str, ModelProvider]:
        """The providers by the Model's name."""
        return {name: ModelProvider(model) for name, model in self.bundle.models.items()}

    def warm_up(self, agents: Iterable[str]) -> None:
        """Begin to load the agents' providers on a thread, so that first requests need not wait for that."""
        configurations = (self.bundle.agents[agent].spec.configuration for agent in agents)
        names = {one.model_ref.name for one in configurations if one is not None}
        providers = [self.by_model[name] for name in names if name in self.by_model]

        def load() -> None:
            for provider in providers:
                try:
                    provider.load()
                except GoondanError as error:  # raised again by the request that needs it
                    logger.warning("model.not_loaded", model=provider.resource.name, reason=error.message)

        if providers:
            thread = threading.Thread(target=load, name="goondan-models", daemon=True)
            self._loading.append(thread)
            thread.start()

    def is_warm(self, seconds: float) -> bool:
        """Wait until the providers are loaded, at most ``seconds``; return whether they are, or cannot be."""
        end = time.monotonic() + seconds
        for thread in self._loading:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._loading)

    async def close(self) -> None:
        """Close the connections, in the event loop that asked."""
        closes = (provider.close() for provider in self.by_model.values())
        await asyncio.gather(*closes, return_exceptions=True)  # each is closed, whatever another one raises
