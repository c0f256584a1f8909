"""Calls that last until all of their guests are there."""

from pathlib import Path

from goondan_tasks.client import Client, PendingCall


def meet(
    client: Client, place: Path, guests: int, *, tool: str = "meeting__sync", count: int = 1
) -> list[PendingCall]:
    """Submit calls that end when ``guests`` of them have left their marks in ``place``."""
    place.mkdir(exist_ok=True)
    args = {"place": str(place), "guests": guests}
    return client.submit_many([{"agentName": "smith", "toolName": tool, "args": args}] * count)


def marks(place: Path) -> int:
    """Return how many guests have come."""
    return len(list(place.iterdir()))
