"""The Lua scripts of the OAuth store in Redis, each in a file that says what it takes and returns."""

from dataclasses import dataclass
from importlib.resources import files

from broker_config.scripts import Script

_WITH_GRANTING = {"replace_grant", "keep_grant", "complete"}


@dataclass(frozen=True, slots=True)
class StoreScripts:
    """The scripts by name."""

    replace_grant: Script
    keep_grant: Script
    forget_grant: Script
    open_session: Script
    advance: Script
    complete: Script
    rewrite: Script
    keep_lock: Script
    unlock: Script

    @classmethod
    def read(cls) -> "StoreScripts":
        """Read every script."""
        folder = files("goondan_tasks.oauth") / "scripts"
        return cls(**{name: Script.read(folder, *_parts(name)) for name in cls.__slots__})


def _parts(name: str) -> tuple[str, ...]:
    return ("granting", name) if name in _WITH_GRANTING else (name,)
