"""The ledger's Lua scripts, each in a file of its own that says what it takes and returns."""

from dataclasses import dataclass
from importlib.resources import files

from broker_config.scripts import Script

#: the files of the scripts that are made of more than the one of their name
_MADE_OF = {
    "submit": ("keeping", "tracing", "mailboxes", "accepting", "submit"),
    "claim": ("keeping", "tracing", "claiming", "claim"),
    "claim_on_reserve": ("keeping", "tracing", "claiming", "claim_on_reserve"),
    "meet": ("keeping", "tracing", "mailboxes", "accepting", "claiming", "meet"),
    "fetch": ("keeping", "tracing", "mailboxes", "claiming", "fetch"),
    "let_events_come": ("keeping", "mailboxes", "let_events_come"),
    "renew": ("keeping", "mailboxes", "renew"),
    "finish": ("finishing", "finish"),
    "suspend": ("keeping", "suspend"),
    "finish_event": ("keeping", "tracing", "mailboxes", "accepting", "finishing", "finish_event"),
}


@dataclass(frozen=True, slots=True)
class Scripts:
    """The scripts by name."""

    submit: Script
    claim: Script
    meet: Script
    fetch: Script
    let_events_come: Script
    start: Script
    renew: Script
    finish: Script
    finish_event: Script
    suspend: Script
    resolve: Script
    approve: Script
    release: Script
    sweep: Script
    replayed: Script
    cancel: Script
    marked: Script
    progress: Script
    retry: Script
    #: the beginning of the transport's ``reserve.lua``
    claim_on_reserve: Script

    @classmethod
    def read(cls) -> "Scripts":
        """Read every script; Redis learns of one when it is first run."""
        folder = files("goondan_tasks.ledger") / "scripts"
        return cls(**{name: Script.read(folder, *_MADE_OF.get(name, (name,))) for name in cls.__slots__})
