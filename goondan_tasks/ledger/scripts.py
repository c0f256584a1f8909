"""The ledger's Lua scripts, each in a file of its own that says what it takes and returns."""

from dataclasses import dataclass
from importlib.resources import files

from redis import Redis
from redis.commands.core import Script


@dataclass(frozen=True, slots=True)
class Scripts:
    """The scripts, registered with one client."""

    submit: Script
    claim: Script
    start: Script
    renew: Script
    finish: Script
    release: Script
    sweep: Script

    @classmethod
    def of(cls, redis: Redis) -> "Scripts":
        """Read and register every script; nothing is sent until one is called."""
        folder = files("goondan_tasks.ledger") / "scripts"
        return cls(
            **{
                name: redis.register_script((folder / f"{name}.lua").read_text("utf-8"))
                for name in cls.__slots__
            }
        )
