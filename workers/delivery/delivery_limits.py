"""How large calls may be, and how long and how often a worker may hold one."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """What the settings say about calls and events."""

    max_args_bytes: int
    max_attempts: int
    lease_seconds: float
    max_handoff_depth: int
