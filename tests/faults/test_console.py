"""The console in a real browser: what it shows, follows and does, with scripts and without."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from goondan_web.doors.console import looks
from tests.chromium import ARGUMENTS, chromium
from tests.model_server import Answer, Call, in_turn
from tests.node_packages import node_modules
from tests.shop import Shop, answer_customer, fill, shop
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.long]

PATIENCE = 120
#: what a page takes to follow, in ms, on a machine with other work
SOON = 60_000
#: what a page shows of it up to the first control character, which is written as in its place
TAGS = "<script>window.hit = 1</script><img src=x onerror='window.hit = 1'>"
HOSTILE = f"{TAGS}\x1b[31m\u202egnp.exe\u2066"
SHOWN = f"{TAGS}\\x1b[31m\\u202egnp.exe\\u2066"
PLACES = "() => [...document.querySelectorAll('tr')].map(row => row.getBoundingClientRect().top)"
#: adds up what moves while a page is open, and counts its updates
SHIFTS = """() => {
  window.shifted = 0;
  const add = (list) => list.getEntries().forEach((one) => { window.shifted += one.value; });
  new PerformanceObserver(add).observe({ type: "layout-shift" });
}"""
UPDATES = """() => {
  window.updates = 0;
  document.addEventListener("htmx:after:swap", () => { window.updates += 1; });
}"""
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
        expect.set_options(timeout=SOON)
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


def has_updates(page: Page, updates: int) -> bool:
    seen: int = page.evaluate("window.updates")
    return seen >= updates


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
                expect(page.locator("#live-state")).to_have_text("live")
    assert trouble.said == []
    assert trouble.hosts == {swarm.url.removeprefix("http://")}


def test_page_follows_although_script_comes_late(chrome: Browser, swarm: Shop) -> None:
    """What htmx does at its beginning must find its extension for streams."""
    held = list[Route]()
    with opened(chrome, swarm) as (page, trouble):
        page.route("**/hx-sse.min.js", lambda route: held.append(route))
        page.goto(f"{swarm.url}/console/calls", wait_until="commit")
        wait_until(lambda: page.evaluate("Boolean(window.htmx)") and held, PATIENCE)
        page.evaluate("new Promise((done) => setTimeout(done, 100))")  # htmx would have begun
        held[0].continue_()
        expect(page.locator("#live-state")).to_have_text("live")
    assert trouble.said == []


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


def test_open_page_updates_without_losing_user_input(chrome: Browser, swarm: Shop) -> None:
    first = swarm.held("first", "follower")
    with opened(chrome, swarm, viewport={"width": 1_000, "height": 500}) as (page, trouble):
        go(page, swarm, "/approvals")
        card = page.locator(f"#approval-{first.id}")
        card.get_by_text("Deny…").click()
        card.get_by_label("Why?").fill("half a sen")
        place = page.evaluate("window.scrollY")
        other = swarm.held("second", "follower")
        fresh = page.get_by_role("button", name="1 new")
        expect(fresh).to_be_visible()
        expect(page.locator(f"#approval-{other.id}")).not_to_be_attached()
        expect(card.get_by_label("Why?")).to_be_focused()
        page.keyboard.type("tence")
        expect(card.get_by_label("Why?")).to_have_value("half a sentence")
        assert page.evaluate("window.scrollY") == place
        fresh.click()
        expect(page.locator(f"#approval-{other.id}")).to_be_attached()
        expect(fresh).to_be_hidden()
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


def test_new_rows_are_counted_without_moving_page(chrome: Browser, swarm: Shop) -> None:
    def call() -> str:
        seen = swarm.client.submit("support", "orders__find", {"customer": "2"}, instance_key="read")
        seen.result(PATIENCE)
        return seen.id

    before = [call() for _ in range(3)]
    with opened(chrome, swarm, viewport={"width": 1_000, "height": 700}) as (page, trouble):
        go(page, swarm, "/calls?instance=read&limit=3")
        expect(page.locator("#live-state")).to_have_text("live")
        rows, fresh = page.locator("#live tbody tr"), page.locator("#fresh")
        page.keyboard.press("j")
        page.keyboard.press("j")
        focused = page.evaluate("document.activeElement.closest('tr').id")
        places = page.evaluate(
            "[...document.querySelectorAll('tr')].map(row => row.getBoundingClientRect().top)"
        )
        page.evaluate(SHIFTS)
        after = [call() for _ in range(3)]
        expect(fresh).to_have_text("3 new")
        assert [row.get_attribute("id") for row in rows.all()] == [f"call-{one}" for one in reversed(before)]
        assert page.evaluate("document.activeElement.closest('tr').id") == focused
        assert places == page.evaluate(PLACES)
        assert page.evaluate("window.shifted") == 0
        page.keyboard.press("n")
        expect(fresh).to_be_hidden()
        expect(rows.first).to_have_id(f"call-{after[-1]}")
        assert [row.get_attribute("id") for row in rows.all()] == [f"call-{one}" for one in reversed(after)]
        newest = call()  # nobody reads: it comes by itself
        expect(rows.first).to_have_id(f"call-{newest}")
    assert trouble.said == []


def test_heap_does_not_grow_with_updates(
    chrome: Browser, swarm: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(looks, "SHARE", 1.0)
    monkeypatch.setattr(looks, "_LOOKS_UNCHANGED", 1)
    with opened(chrome, swarm) as (page, trouble):
        go(page, swarm, "/calls")
        page.evaluate(UPDATES)
        session = page.context.new_cdp_session(page)

        def counts() -> tuple[int, int, int]:
            session.send("HeapProfiler.collectGarbage")
            dom, heap = session.send("Memory.getDOMCounters"), session.send("Runtime.getHeapUsage")
            return heap["usedSize"], dom["nodes"], dom["jsEventListeners"]

        wait_until(partial(has_updates, page, 100), PATIENCE)
        size, nodes, listeners = counts()
        wait_until(partial(has_updates, page, 600), 2 * PATIENCE)
        most = (size + 500_000, 2 * nodes, listeners + 20)  # an update may have begun
        wait_until(
            lambda: all(now <= one for now, one in zip(counts(), most, strict=True)), PATIENCE, show=counts
        )
    assert trouble.said == []


def test_browser_keeps_theme_and_ids_are_copied(chrome: Browser, swarm: Shop) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    options = {"color_scheme": "light", "permissions": ["clipboard-read", "clipboard-write"]}
    with opened(chrome, swarm, **options) as (page, trouble):
        go(page, swarm, "/calls")
        light = page.evaluate(ground)
        for name in ("as the system", "light"):
            page.get_by_role("button", name=f"Theme: {name}").click()
        dark = page.evaluate(ground)
        assert dark != light
        go(page, swarm, "/traces")
        assert page.evaluate(ground) == dark
        page.get_by_role("button", name="Theme: dark").click()
        assert page.evaluate(ground) == light

        go(page, swarm, "/calls")
        page.keyboard.press("j")
        shown = page.evaluate("document.activeElement.closest('tr').id")
        page.keyboard.press("c")
        wait_until(lambda: f"call-{page.evaluate('navigator.clipboard.readText()')}" == shown, PATIENCE)
    assert trouble.said == []


def test_each_key_does_what_help_says(chrome: Browser, swarm: Shop) -> None:
    calls = [swarm.held(order, "typist") for order in ("to-approve", "to-deny")]
    with opened(chrome, swarm) as (page, trouble):
        go(page, swarm, "/approvals")
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("approve or deny")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        for key, call in zip("ad", calls, strict=True):
            page.locator(f"#approval-{call.id} a").first.focus()
            page.keyboard.press(key)
            if key == "d":
                page.keyboard.type("not by keyboard")
            page.keyboard.press("Escape")
            expect(page.locator("details[open]")).to_have_count(0)
            page.keyboard.press(key)
            page.keyboard.press("Enter")
            expect(page.get_by_role("status").filter(has_text="The call is")).to_be_visible()
        go(page, swarm, f"/calls/{calls[0].id}")
        page.keyboard.press("Escape")
        page.wait_for_url("**/console/calls")
    assert calls[0].result(PATIENCE, wait_pending=True).output == {"paid": 129.9}
    assert "not by keyboard" in str(calls[1].result(PATIENCE, wait_pending=True).error)
    assert trouble.said == []


def test_conversation_shows_running_turn_while_it_is_written(chrome: Browser, swarm: Shop) -> None:
    gate = threading.Event()
    text = "**Bold** and [safe](https://e.example) and ![cat](https://e.example/cat.png) " + "word " * 50
    find = Call("orders__find", {"customer": "1041"})
    answers = in_turn(Answer("I look.", (find,)), Answer(text, gate=gate, gate_after=20))
    swarm.model.begin(answers)
    kept = swarm.client.start_turn("support", "Write.", instance_key="written", keep=60)
    with opened(chrome, swarm) as (page, trouble):
        go(page, swarm, "/conversations/support/written")
        turn = page.locator(f"#turn-{kept.id}")
        expect(turn).to_contain_text("thinking since")
        expect(turn.locator("strong")).to_have_text("Bold")
        expect(turn.get_by_role("link", name="safe")).to_have_attribute("rel", "noreferrer noopener nofollow")
        expect(page.locator(".tool summary")).to_contain_text("ok")
        expect(turn.get_by_text("I look.")).to_be_hidden()  # it is a message by now
        gate.set()
        expect(turn).not_to_be_attached()
        message = page.locator(".message.assistant").last
        expect(message.locator("strong")).to_have_text("Bold")
        expect(message).to_contain_text("word word")
        assert page.locator("main img").count() == 0

        gate.clear()
        swarm.model.begin(in_turn(Answer("Not kept.", gate=gate, gate_after=1)))
        other = swarm.client.start_turn("support", "Again.", instance_key="written")
        turn = page.locator(f"#turn-{other.id}")
        expect(turn).to_contain_text("thinking since")
        assert turn.locator(".live-text").count() == 0
        gate.set()
        expect(page.locator(".message.assistant").last).to_contain_text("Not kept.")
    swarm.model.begin(answer_customer)
    assert trouble.said == []
    assert trouble.hosts == {swarm.url.removeprefix("http://")}


def test_dead_letters_of_one_kind_are_dropped_after_confirmation(chrome: Browser, swarm: Shop) -> None:
    """A letter that comes while the page is open is not dropped with them."""
    with opened(chrome, swarm) as (page, trouble):
        go(page, swarm, "/dead-letters")
        kind = page.locator("tr", has_text="mail__crash")
        expect(kind.locator("td.number")).to_have_text("2")
        kind.get_by_text("Drop…").click()
        expect(page.locator("main")).to_contain_text("Will drop 2 calls of 1 tool")
        later = swarm.in_state("dead", "support", "mail__crash")
        swarm.stack.start_worker(["support"])
        page.get_by_role("button", name="Drop 2").click()
        expect(page.locator("main")).to_contain_text("2 done")
        expect(page.locator("main")).to_contain_text("Nothing is left")
        go(page, swarm, "/dead-letters")
        expect(page.locator("tr", has_text="mail__crash")).to_contain_text(later.id[:8])
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
        "/try/support": SHOWN,
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


def test_handoff_graph_leads_to_calls_and_shrinks_to_table(chrome: Browser, swarm: Shop) -> None:
    with opened(chrome, swarm) as (page, trouble):
        go(page, swarm, "")
        page.locator(".graph a:has(rect)", has_text="billing").locator("text").first.click()
        page.wait_for_url("**/calls?agent=billing")
        page.set_viewport_size({"width": 320, "height": 640})
        go(page, swarm, "")
        expect(page.locator(".graph")).to_be_hidden()
        page.locator("#edge-support-to-billing").get_by_role("link").first.click()
        page.wait_for_url("**/calls?agent=billing&tool=*")
        expect(page.locator("main")).to_contain_text("goondan__delegate")
    assert trouble.said == []


def test_no_page_scrolls_sideways_on_small_screen(chrome: Browser, swarm: Shop) -> None:
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
