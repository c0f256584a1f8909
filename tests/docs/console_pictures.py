"""Pictures of the console's pages, with a swarm that has calls in every state.

``python -m tests.docs.console_pictures FOLDER`` writes one PNG of each page in light and in dark. Those that
the documentation shows were copied to ``docs/how-to/console`` from there. Needs Chromium on ``PATH``.
"""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.chromium import ARGUMENTS, chromium
from tests.shop import Shop, fill, shop

WIDTH, HEIGHT = 1_280, 800


def pages(at: Shop, correlation_id: str) -> dict[str, str]:
    """Return the paths of the pages by their names."""
    client = at.client
    calls = {
        name: client.calls(None, 1, status=state)[0].id
        for name, state in (
            ("failed", "error"),
            ("waiting", "waiting"),
            ("pending", "pending"),
            ("dead", "dead"),
        )
    }
    return {
        "overview": "",
        "conversations": "/conversations",
        "conversation": "/conversations/support/customer-1041",
        "calls": "/calls",
        "traces": "/traces",
        "trace": f"/traces/{correlation_id}",
        "approvals": "/approvals",
        "dead-letters": "/dead-letters",
        "queues": "/queues",
        "workers": "/workers",
        "usage": "/usage",
        "schedules": "/schedules",
        "connections": "/connections",
        "try": "/try",
        "try-agent": "/try/support",
        "try-tool": "/try/support/orders__find",
        "search": "/search?q=nothing",
        "error": "/calls/nothing",
        **{f"call-{name}": f"/calls/{call_id}" for name, call_id in calls.items()},
    }


def take(folder: Path) -> None:
    """Start the swarm, and take all pages."""
    with shop() as at, sync_playwright() as player:
        paths = pages(at, fill(at))
        browser = player.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        for scheme in ("light", "dark"):
            page = browser.new_page(
                viewport={"width": WIDTH, "height": HEIGHT},
                color_scheme=scheme,
            )
            for name, path in paths.items():
                page.goto(f"{at.url}/console{path}")
                page.screenshot(path=folder / f"{name}-{scheme}.png", full_page=True)
        browser.close()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    take(target)
