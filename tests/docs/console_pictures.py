"""Pictures of the console's pages, with a swarm that has calls in every state.

``python -m tests.docs.console_pictures FOLDER`` writes a WebP picture of each page in light and in dark, as
wide windows and as narrow ones show it: ``NAME-light.webp``, ``NAME-dark.webp``, ``NAME-light-narrow.webp`` …
Those that the documentation shows were copied to ``docs/how-to/console`` from there. Needs Chromium on
``PATH``.
"""

import base64
import sys
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

from tests.chromium import ARGUMENTS, chromium
from tests.shop import Shop, fill, shop

#: widths and heights of windows in pixels, by what the names of their pictures end with
SIZES = {"": (1_440, 900), "-narrow": (320, 640)}
#: of 100
_QUALITY = 70
_PATIENCE_MS = 60_000
#: no picture is higher than this, in pixels: documents show the beginning of a long page
_HIGHEST = 1_000


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
        "calls-none": "/calls?agent=archive&status=ok",
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
        "audit": "/audit",
        "bundle": "/bundle",
        "files": "/conversations/support/customer-1041/files",
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
            for ending, (width, height) in SIZES.items():
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                for name, path in paths.items():
                    page.goto(f"{at.url}/console{path}")
                    if page.locator("#live").count():
                        expect(page.locator("#live-state")).to_have_text("live", timeout=_PATIENCE_MS)
                    (folder / f"{name}-{scheme}{ending}.webp").write_bytes(picture(page, width))
                page.close()
        browser.close()


def picture(page: Page, width: int) -> bytes:
    """Return a WebP picture of a page, which Playwright itself does not take."""
    height = min(_HIGHEST, page.evaluate("document.documentElement.scrollHeight"))
    session = page.context.new_cdp_session(page)
    taken = session.send(
        "Page.captureScreenshot",
        {
            "format": "webp",
            "quality": _QUALITY,
            "captureBeyondViewport": True,
            "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1},
        },
    )
    session.detach()
    return base64.b64decode(taken["data"])


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    take(target)
