"""The console in a real browser: what it shows, follows and does, with scripts and without."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.chromium import ARGUMENTS, chromium
from tests.node_packages import node_modules
from tests.shop import Shop, fill, shop

pytestmark = [pytest.mark.faults, pytest.mark.long]

PATIENCE = 120
#: what a page takes to follow, in ms, on a machine with other work
SOON = 60_000
#: what a page shows of it up to the first control character, which is written as in its place
TAGS = "<script>window.hit = 1</script><img src=x onerror='window.hit = 1'>"
HOSTILE = f"{TAGS}\x1b[31m\u202egnp.exe\u2066"
SHOWN = f"{TAGS}\\x1b[31m\\u202egnp.exe\\u2066"
PATHS = (
    "",
    "/conversations",
    "/conversations/support/customer-1041",
    "/calls",
    "/traces",
    "/approvals",
    "/dead-letters",
    "/queues",
    "/workers",
    "/usage",
    "/schedules",
    "/connections",
    "/try",
    "/try/support",
    "/try/support/orders__find",
    "/search?q=nothing",
)
STATES = ("ok", "error", "running", "waiting", "pending", "queued", "scheduled", "dead")


@pytest.fixture(scope="module")
def swarm() -> Iterator[Shop]:
    """Return the swarm with calls in all states, and hostile texts wherever there may be any."""
    chromium()
    description = json.dumps(f"Finds the orders of a customer. {HOSTILE}")
    with shop(lambda text: text.replace("Finds the orders of a customer.", description, 1)) as at:
        fill(at)
        yield at


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield browser
        browser.close()


@dataclass
class Trouble:
    """What went wrong in a page, and where it looked."""

    said: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)


@contextmanager
def opened(chrome: Browser, swarm: Shop, **options: Any) -> Iterator[tuple[Page, Trouble]]:
    """Open a browser's page, and note what goes wrong in it."""
    trouble = Trouble()
    context = chrome.new_context(base_url=f"{swarm.url}/console", **options)
    page = context.new_page()
    page.set_default_timeout(SOON)
    page.on(
        "console", lambda said: trouble.said.append(said.text) if said.type in {"error", "warning"} else None
    )
    page.on("pageerror", lambda error: trouble.said.append(str(error)))
    page.on("request", lambda asked: trouble.hosts.add(asked.url.split("/")[2]))
    page.on(
        "response", lambda got: trouble.said.append(f"{got.status} {got.url}") if got.status >= 400 else None
    )
    yield page, trouble
    context.close()


def go(page: Page, swarm: Shop, path: str) -> None:
    page.goto(f"{swarm.url}/console{path}")


def paths(swarm: Shop) -> list[str]:
    """Return the paths of all pages, and of a call in each state."""
    calls = [swarm.client.calls(None, 1, status=state)[0] for state in STATES]
    [turn] = swarm.client.calls("support", 1, tool="goondan__delegate")
    return [
        *PATHS,
        *(f"/calls/{call.id}" for call in calls),
        f"/traces/{turn.call.correlation_id}",
    ]


def test_no_page_has_errors_or_asks_another_host(chrome: Browser, swarm: Shop) -> None:
    with opened(chrome, swarm) as (page, trouble):
        for path in paths(swarm):
            go(page, swarm, path)
            expect(page.locator("h1")).to_have_count(1)
            if page.locator("#live").count():
                page.wait_for_function("document.querySelector('#live')._htmx?.sse")
    assert trouble.said == []
    assert trouble.hosts == {swarm.url.removeprefix("http://")}


def test_page_is_read_and_acted_on_without_scripts(chrome: Browser, swarm: Shop) -> None:
    call = swarm.held("without-scripts", "scriptless")
    with opened(chrome, swarm, java_script_enabled=False) as (page, trouble):
        for path in paths(swarm):
            go(page, swarm, path)
            assert page.locator("main").inner_text()
        go(page, swarm, "/approvals")
        card = page.locator(f"#approval-{call.id}")
        card.get_by_text("Deny…").click()
        card.get_by_label("Why?").fill("not without scripts")
        card.get_by_role("button", name="Deny refunds__pay").click()
        expect(page.get_by_role("status")).to_contain_text("is denied")
    assert trouble.said == []
    assert "not without scripts" in str(call.result(PATIENCE, wait_pending=True).error)


def test_open_page_follows_without_losing_what_its_user_does(chrome: Browser, swarm: Shop) -> None:
    first = swarm.held("first", "follower")
    with opened(chrome, swarm, viewport={"width": 1_000, "height": 500}) as (page, trouble):
        go(page, swarm, "/approvals")
        card = page.locator(f"#approval-{first.id}")
        card.get_by_text("Deny…").click()
        card.get_by_label("Why?").fill("half a sen")
        place = page.evaluate("window.scrollY")
        other = swarm.held("second", "follower")
        expect(page.locator(f"#approval-{other.id}")).to_be_attached()
        expect(card.get_by_label("Why?")).to_be_focused()
        page.keyboard.type("tence")
        expect(card.get_by_label("Why?")).to_have_value("half a sentence")
        assert page.evaluate("window.scrollY") == place
        swarm.client.deny(other.id)
        expect(page.locator(f"#approval-{other.id}")).not_to_be_attached()
        expect(card.get_by_label("Why?")).to_have_value("half a sentence")

        go(page, swarm, "/calls?tool=orders__find&instance=watched")
        expect(page.locator("main")).to_contain_text("No such call")
        seen = swarm.client.submit("support", "orders__find", {"customer": "1"}, instance_key="watched")
        expect(page.locator(f"#call-{seen.id} .state")).to_have_text("✓ ok")
        expect(page.locator(f"#call-{seen.id} time")).to_contain_text("ago")
    swarm.client.deny(first.id)
    assert trouble.said == []


def test_unfolded_group_of_dead_letters_stays_the_same_group(chrome: Browser, swarm: Shop) -> None:
    """Another group that comes before it must not get under the user's pointer."""
    with opened(chrome, swarm) as (page, trouble):
        go(page, swarm, "/dead-letters")
        group = page.locator("article", has_text="mail__crash of billing")
        group.get_by_text("Drop 2…").click()
        form = group.locator("form", has_text="Drop 2")
        expect(form).to_be_visible()
        swarm.in_state("dead", "support", "mail__crash")
        swarm.stack.start_worker(["support"])
        expect(page.locator("article").first).to_contain_text("mail__crash of support")
        expect(form).to_be_visible()
        expect(form.locator("input[name=agent]")).to_have_value("billing")
        expect(page.locator("article").first.locator("form").first).to_be_hidden()
    assert trouble.said == []


def test_call_is_approved_by_keyboard_alone(chrome: Browser, swarm: Shop) -> None:
    call = swarm.held("by-keyboard", "typist")
    with opened(chrome, swarm) as (page, trouble):
        go(page, swarm, "")
        page.keyboard.press("/")
        expect(page.locator("#search")).to_be_focused()
        page.keyboard.type(call.id)
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/calls/{call.id}")
        go(page, swarm, "/approvals")
        cards = page.locator("article")
        here = [card.get_attribute("id") for card in cards.all()].index(f"approval-{call.id}")
        for _ in range(here + 2):
            page.keyboard.press("j")
        page.keyboard.press("k")
        for _ in range(here == cards.count() - 1):
            page.keyboard.press("j")
        card = page.locator(f"#approval-{call.id}")
        assert card.evaluate("card => card.contains(document.activeElement)")
        while not page.evaluate("document.activeElement.textContent.startsWith('Approve')"):
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        expect(card.get_by_role("button", name="Approve refunds__pay")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_contain_text("is approved")
    assert call.result(PATIENCE, wait_pending=True).output == {"paid": 129.9}
    assert trouble.said == []


def test_hostile_texts_are_texts(chrome: Browser, swarm: Shop) -> None:
    client = swarm.client
    key = "<script>window.hit=1</script>"
    long = client.submit("support", "orders__repeat", {"text": HOSTILE, "times": 10_000}, instance_key=key)
    line = client.submit("support", "orders__repeat", {"text": "x" * 1_000_000}, instance_key=key)
    turn = client.start_turn("support", HOSTILE, instance_key=key)
    turn.result(PATIENCE)
    failed = client.submit("support", "mail__send", {"to": HOSTILE, "text": "<b>bold</b>"}, instance_key=key)
    for call in (long, line, failed):
        call.result(PATIENCE)
    held = client.submit("support", "refunds__pay", {"order": HOSTILE, "amount": 1}, instance_key=key)
    assert held.result(PATIENCE).meta.awaits == "approval"
    seen = {
        f"/calls/{long.id}": TAGS,
        f"/calls/{line.id}": "xxx",
        f"/calls/{failed.id}": "<b>bold</b>",
        f"/calls/{turn.id}": "<script>",
        "": SHOWN,
        f"/traces/{client.record(turn.id).call.correlation_id}": "goondan__model-scripted",
        "/calls": key,
        "/conversations": key,
        "/conversations/support/%3Cscript%3Ewindow.hit%3D1%3C%2Fscript%3E": SHOWN,
        "/approvals": TAGS,
        "/try": SHOWN,
        "/try/support/orders__find": SHOWN,
        "/search?q=%3Cscript%3Ewindow.hit=1%3C/script%3E": key,
    }
    with opened(chrome, swarm, viewport={"width": 1_280, "height": 800}) as (page, trouble):
        for path, text in seen.items():
            go(page, swarm, path)
            expect(page.locator("main")).to_contain_text(text)
            content = page.content()
            assert "\x1b" not in content, path
            assert "\u202e" not in content, path
            assert page.locator("main script, main img").count() == 0, path
            assert page.evaluate("window.hit") is None, path
            assert len(content) < 200_000, path
            assert _overflow(page) <= 0, path
    client.deny(held.id)
    assert trouble.said == []


def _overflow(page: Page) -> int:
    """Return how many pixels the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def test_graph_of_hand_offs_leads_to_calls_and_is_a_table_on_a_small_screen(
    chrome: Browser, swarm: Shop
) -> None:
    with opened(chrome, swarm) as (page, trouble):
        go(page, swarm, "")
        page.locator(".graph a", has_text="billing").locator(".name").click()
        page.wait_for_url("**/calls?agent=billing")
        page.set_viewport_size({"width": 320, "height": 640})
        go(page, swarm, "")
        expect(page.locator(".graph")).to_be_hidden()
        page.locator("#edge-support-to-billing").get_by_role("link").first.click()
        page.wait_for_url("**/calls?agent=billing&tool=*")
        expect(page.locator("main")).to_contain_text("goondan__delegate")
    assert trouble.said == []


def test_no_page_scrolls_sideways_on_a_small_screen(chrome: Browser, swarm: Shop) -> None:
    with opened(chrome, swarm, viewport={"width": 320, "height": 640}) as (page, trouble):
        wide = {}
        for path in paths(swarm):
            go(page, swarm, path)
            if (overflow := _overflow(page)) > 0:
                wide[path] = overflow
        assert wide == {}
    assert trouble.said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(chrome: Browser, swarm: Shop, scheme: str) -> None:
    script = node_modules("axe") / "axe-core" / "axe.min.js"
    found: dict[str, list[str]] = {}
    with opened(chrome, swarm, bypass_csp=True, color_scheme=scheme) as (page, _):
        for path in paths(swarm):
            go(page, swarm, path)
            page.add_script_tag(path=script)
            for details in page.locator("details").all():
                details.evaluate("one => { one.open = true; }")
            result = page.evaluate("axe.run()")
            for one in result["violations"]:
                if one["impact"] in {"serious", "critical"}:
                    found.setdefault(f"{one['id']}: {one['help']}", []).append(
                        f"{path}: {one['nodes'][0]['html'][:200]}"
                    )
    assert found == {}
