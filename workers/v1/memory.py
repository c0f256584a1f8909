"""What an older extension remembers for each instance: ``api.state``, ``get_state``, ``instance.shared``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from goondan_tasks.messages import JsonObject
from workers.extensions.state import ExtensionState, StateStore

#: no Extension can be called so
_SHARED = "#shared"
_OBJECT = "#state"

_KEY = "object"


@dataclass(frozen=True, slots=True)
class Memory:
    """Three states of one agent's instances; each method waits as those of ExtensionState do."""

    #: ``api.state``
    state: ExtensionState
    #: ``api.instance.shared``, which all extensions of the agent see
    shared: ExtensionState
    _object: ExtensionState

    @classmethod
    def of(cls, store: StateStore, agent: str, extension: str) -> "Memory":
        """Return what one extension of an agent remembers."""
        return cls(
            ExtensionState(store, agent, extension),
            ExtensionState(store, agent, _SHARED),
            ExtensionState(store, agent, f"{extension}{_OBJECT}"),
        )

    def get_state(self) -> Any:
        """Return the object that was kept for the running instance; it is empty at first.

        Raises:
            RuntimeError: no instance is running.
            BrokerUnreachableError: Redis cannot be reached.
        """
        return self._object.get(_KEY, {})

    def set_state(self, state: JsonObject) -> Any:
        """Keep an object for the running instance.

        Raises:
            TypeError: it is no object.
            ValueError: it is no JSON, or too long.
            RuntimeError, BrokerUnreachableError: as :meth:`get_state`.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"the state of an extension is an object, not {type(state).__name__}")
        return self._object.set(_KEY, dict(state))
