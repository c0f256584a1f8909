"""What an older extension remembers for each instance: ``api.state``, ``get_state``, ``instance.shared``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from goondan_tasks.messages import JsonObject
from workers.extensions.running import running_for
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
    _agent: str

    @classmethod
    def of(cls, store: StateStore, agent: str, extension: str) -> "Memory":
        """Return what one extension of an agent remembers."""
        return cls(
            ExtensionState(store, agent, extension),
            ExtensionState(store, agent, _SHARED),
            ExtensionState(store, agent, f"{extension}{_OBJECT}"),
            agent,
        )

    def get_state(self) -> Any:
        """Return the object that was kept for the running instance; it is empty at first.

        Raises:
            RuntimeError: no instance is running.
            BrokerUnreachableError: Redis cannot be reached.
        """
        self._require_instance()
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
        self._require_instance()
        return self._object.set(_KEY, dict(state))

    def _require_instance(self) -> None:
        if running_for(self._agent) is None:
            raise RuntimeError(
                "no Turn, Step or tool call is running here, whose instance could be meant: call it from a "
                "handler or a pipeline, or name the instance in api.state.get(key, instance_key=…)"
            )
