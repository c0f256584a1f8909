"""The ledger's Lua scripts. The header of each file describes its keys, arguments and answer."""

from dataclasses import dataclass, replace
from importlib.resources import files

from broker_config.confirmation import Confirmation
from broker_config.scripts import Script
from broker_config.settings import Settings

#: the approximate number of entries that are kept of a stream of events
MOST_ENTRIES = 20_000

#: what other programs may have written in place of a mailbox is recognised by a script of broker_config
_MAILBOXES = ("wrong_type", "mailboxes")
#: what accepts calls and events; each file needs those before it, and ``ttl`` and ``tracing``
_ACCEPTING = (*_MAILBOXES, "scheduled", "streams", "accept")

#: the files of each script that has more than the one of its own name
_MADE_OF = {
    "submit": ("ttl", "tracing", *_ACCEPTING, "submit"),
    "claim": ("ttl", "tracing", "numbers", "claiming", "claim"),
    "claim_on_reserve": (
        "ttl",
        "tracing",
        "numbers",
        *_MAILBOXES,
        "permits",
        "claiming",
        "claim_on_reserve",
    ),
    "claim_event": (
        "ttl",
        "tracing",
        "numbers",
        *_ACCEPTING,
        "claiming",
        "claim_event",
    ),
    "fetch": ("ttl", "tracing", "numbers", *_MAILBOXES, "claiming", "fetch"),
    "release_events": ("ttl", *_MAILBOXES, "release_events"),
    "renew": ("ttl", *_MAILBOXES, "renew"),
    "keep_leases": ("ttl", *_MAILBOXES, "keep_leases"),
    "release": ("ttl", "numbers", "former", "failures", "permits", "queueing", "release"),
    "start": ("permits", "start"),
    "emit": ("wrong_type", "emit"),
    "finish": ("permits", "failures", "streams", "finishing", "finish"),
    "finish_step": (
        "permits",
        "failures",
        "streams",
        "finishing",
        "turn_lines",
        "keeping",
        "finish_step",
    ),
    "suspend": ("ttl", "permits", "suspend"),
    "resolve": ("numbers", "resolve"),
    "approve": ("numbers", "approve"),
    "cancel": ("numbers", "scheduled", "cancel"),
    "retry": ("ttl", "numbers", "former", "failures", "permits", "queueing", "scheduled", "retry"),
    "sweep": ("ttl", "numbers", *_MAILBOXES, "former", "rebuilding", "scheduled", "waking", "sweep"),
    "finish_event": (
        "ttl",
        "tracing",
        *_ACCEPTING,
        "permits",
        "failures",
        "finishing",
        "finish_event",
    ),
    "fire": ("ttl", "tracing", *_ACCEPTING, "running", "fire"),
    "due_schedules": ("running", "slots", "due_schedules"),
    "keep_schedules": ("ttl", "slots", "keep_schedules"),
    "pause_schedule": ("ttl", "pause_schedule"),
}


#: what a failover must not undo: a call that was accepted, and the mark before which no handler begins
_REQUIRED = ("submit", "start", "fire")
#: results and decisions, which count even if too few replicas have confirmed them in time
_WANTED = ("finish", "finish_step", "finish_event", "suspend", "resolve", "approve", "cancel")


@dataclass(frozen=True, slots=True)
class Scripts:
    """The scripts, by name."""

    submit: Script
    claim: Script
    claim_event: Script
    fetch: Script
    release_events: Script
    start: Script
    renew: Script
    keep_leases: Script
    finish: Script
    finish_step: Script
    finish_event: Script
    suspend: Script
    resolve: Script
    approve: Script
    release: Script
    sweep: Script
    end_leases: Script
    replayed: Script
    cancel: Script
    cancelled_ids: Script
    progress: Script
    emit: Script
    retry: Script
    unqueue: Script
    fire: Script
    due_schedules: Script
    keep_schedules: Script
    pause_schedule: Script
    #: put before the transport's ``reserve.lua``
    claim_on_reserve: Script

    @classmethod
    def read(cls, settings: Settings) -> "Scripts":
        """Read every script from its files."""
        folder = files("goondan_tasks.ledger") / "scripts"
        scripts = {name: Script.read(folder, *_MADE_OF.get(name, (name,))) for name in cls.__slots__}
        for names, is_required in ((_REQUIRED, True), (_WANTED, False)):
            confirmation = Confirmation.of(settings, is_required=is_required)
            scripts |= {name: replace(scripts[name], confirmation=confirmation) for name in names}
        return cls(**scripts)
