"""The ledger's Lua scripts, each in a file of its own that says what it takes and returns."""

from dataclasses import dataclass
from importlib.resources import files

from broker_config.scripts import Script

#: the scripts behind ``claiming.lua``
_CLAIMING = ("claim", "accompany")


@dataclass(frozen=True, slots=True)
class Scripts:
    """The scripts by name."""

    submit: Script
    claim: Script
    start: Script
    renew: Script
    finish: Script
    release: Script
    sweep: Script
    replayed: Script
    cancel: Script
    marked: Script
    progress: Script
    retry: Script
    #: the beginning of the transport's ``reserve.lua``
    accompany: Script

    @classmethod
    def read(cls) -> "Scripts":
        """Read every script; Redis learns of one when it is first run."""
        folder = files("goondan_tasks.ledger") / "scripts"
        scripts = {name: Script.read(folder, name) for name in cls.__slots__ if name not in _CLAIMING}
        claiming = {name: Script.read(folder, "claiming", name) for name in _CLAIMING}
        return cls(**scripts, **claiming)
