"""What browsers see that follow the same page, and what looks at pages may cost."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from goondan_tasks.contract.errors import BrokerUnreachableError, CallNotFoundError
from goondan_web.doors.console import looks
from goondan_web.doors.console.looks import Looks

PATIENCE = 30


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "LOOK_SECONDS", 0.001)


class Page:
    """A page whose text counts the looks, or what ``texts`` has, the last one for ever."""

    def __init__(self, *texts: str | Exception | None) -> None:
        self.seen = 0
        self.texts = texts

    def __call__(self) -> str | None:
        self.seen += 1
        text = self.texts[min(self.seen, len(self.texts)) - 1] if self.texts else str(self.seen)
        if isinstance(text, Exception):
            raise text
        return text


async def first(texts: AsyncGenerator[str], count: int) -> list[str]:
    async with aclosing(texts):
        return [await anext(texts) for _ in range(count)]


def test_outage_keeps_no_look_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for which a look has waited in vain was none of Redis: it is followed by no long rest."""
    monkeypatch.setattr(looks, "SHARE", 1e-3)
    page = Page(BrokerUnreachableError(), "back")

    def look() -> str | None:
        if not page.seen:
            time.sleep(0.1)  # would be followed by 100 s
        return page()

    found = asyncio.run(asyncio.wait_for(first(Looks().followed("calls", look), 1), PATIENCE))
    assert found == ["back"]


def test_all_followers_of_page_share_one_look() -> None:
    async def scenario() -> None:
        shared, page = Looks(), Page()
        others = [first(shared.followed("calls", page), 3) for _ in range(20)]
        seen = await asyncio.wait_for(asyncio.gather(*others), PATIENCE)
        assert all(texts == ["1", "2", "3"] for texts in seen)
        assert page.seen <= 4  # one may have begun when the last one left

    asyncio.run(scenario())


def test_late_follower_gets_page_and_looks_end_without_followers() -> None:
    async def scenario() -> None:
        shared, page = Looks(), Page("same")
        async with aclosing(shared.followed("calls", page)) as early:
            assert await asyncio.wait_for(anext(early), PATIENCE) == "same"
            assert await asyncio.wait_for(first(shared.followed("calls", Page("other")), 1), PATIENCE) == [
                "same"
            ]
        assert shared._watches == {}
        seen = page.seen
        assert await asyncio.wait_for(first(shared.followed("calls", Page("other")), 1), PATIENCE) == [
            "other"
        ]
        assert page.seen <= seen + 1

    asyncio.run(scenario())


def test_page_is_sent_changed_and_occasionally_unchanged() -> None:
    async def scenario() -> None:
        page = Page("a", "a", "b")
        assert await asyncio.wait_for(first(Looks().followed("x", page), 3), PATIENCE) == ["a", "b", "b"]
        assert page.seen >= 3 + looks._LOOKS_UNCHANGED - 1

    asyncio.run(scenario())


def test_page_outlasts_outage_and_ends_when_gone() -> None:
    async def scenario() -> list[str]:
        page = Page("a", BrokerUnreachableError("away"), None, "b", CallNotFoundError("gone"))
        async with aclosing(Looks().followed("x", page)) as texts:
            return [text async for text in texts]

    assert asyncio.run(asyncio.wait_for(scenario(), PATIENCE)) == ["a", "b"]


def test_looks_take_their_share_of_time_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expensive pages come later: their looks rest for as long as the share asks for."""
    rests: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        rests.append(seconds)
        await sleep(0)

    def busy() -> str:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        return str(time.monotonic())

    async def scenario() -> None:
        shared = Looks()
        pages = [first(shared.followed(number, busy), 2) for number in range(3)]
        await asyncio.wait_for(asyncio.gather(*pages), PATIENCE)

    monkeypatch.setattr(asyncio, "sleep", noted)
    asyncio.run(scenario())

    long = [rest for rest in rests if rest > looks.LOOK_SECONDS]
    assert len(long) >= 5
    assert min(long) >= 0.02 / looks.SHARE - 0.02
