"""What extensions tell each other in a process."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from workers.concurrency.event_loop import EventLoopThread, is_on_loop
from workers.extensions.events import EventListeners


@pytest.fixture
def events() -> Iterator[EventListeners]:
    event_loop = EventLoopThread()
    event_loop.start()
    yield EventListeners(event_loop.submit)
    event_loop.stop()


def test_agents_listeners_hear_events_until_they_unsubscribe(events: EventListeners) -> None:
    heard: list[Any] = []
    end = events.on("coder", "news", heard.append, extension="ext")
    events.on("planner", "news", lambda event: heard.append("planner"), extension="ext")

    events.emit("coder", "news", {"n": 1})
    end()
    end()
    events.emit("coder", "news", {"n": 2})

    assert heard == [{"n": 1}]
    assert not events.has("coder", "news")


def test_each_listener_has_its_own_dict(events: EventListeners) -> None:
    heard: list[Any] = []
    events.on("coder", "news", lambda event: event.clear(), extension="ext")
    events.on("coder", "news", heard.append, extension="ext")
    event = {"n": 1}

    events.emit("coder", "news", event)

    assert (heard, event) == ([{"n": 1}], {"n": 1})


def test_async_listener_is_not_waited_for(events: EventListeners) -> None:
    go_on, ended = threading.Event(), threading.Event()

    async def listener(event: Any) -> None:
        await asyncio.to_thread(go_on.wait, 10)
        ended.set()

    events.on("coder", "news", listener, extension="ext")

    [running] = events.emit("coder", "news")
    assert not ended.is_set()
    go_on.set()
    running.result(30)
    assert ended.is_set()


def test_listener_error_is_logged_and_others_continue(events: EventListeners) -> None:
    heard: list[Any] = []

    def broken(event: Any) -> None:
        raise SystemExit(1)

    async def broken_later(event: Any) -> None:
        raise ValueError("later")

    for listener in (broken, broken_later, heard.append):
        events.on("coder", "news", listener, extension="ext")

    with capture_logs() as logs:
        [running] = events.emit("coder", "news")
        running.result(30)

    assert heard == [{}]
    assert {type(line["exc_info"]) for line in logs} == {SystemExit, ValueError}
    assert {(line["event"], line["extension"], line["on"]) for line in logs} == {
        ("extension.listener_failed", "ext", "news")
    }


def test_stop_waits_for_listeners_within_limit(events: EventListeners) -> None:
    said: list[str] = []

    async def quick(event: Any) -> None:
        said.append("quick")

    async def slow(event: Any) -> None:
        await asyncio.sleep(60)

    events.on("coder", "worker.stopping", slow, extension="ext")
    events.on("planner", "worker.stopping", quick, extension="ext")

    events.stop(0.2)

    assert said == ["quick"]


def test_hanging_plain_listener_delays_no_other_extensions_stop(events: EventListeners) -> None:
    said: list[str] = []
    told = threading.Event()

    def hangs(_: Any) -> None:
        said.append(f"hung until told: {told.wait(20)}")

    def unloads(_: Any) -> None:
        said.append("unloading")
        told.set()

    events.on("coder", "worker.stopping", hangs, extension="hanging")
    events.on("coder", "worker.stopping", lambda _: said.append("stopping"), extension="other")
    events.on("coder", "extension.unloading", unloads, extension="other")

    events.stop(2)

    assert said == ["stopping", "unloading", "hung until told: True"]


def test_plain_listeners_run_ordered_beside_event_loop(events: EventListeners) -> None:
    def listener(event: Any) -> None:
        heard.append((event["n"], is_on_loop()))
        if event["n"] == 2:
            ended.set()

    async def emit() -> None:
        for number in range(3):
            events.emit("coder", "news", {"n": number})

    heard: list[tuple[int, bool]] = []
    ended = threading.Event()
    events.on("coder", "news", listener, extension="ext")

    asyncio.run(emit())

    assert ended.wait(30)
    assert heard == [(0, False), (1, False), (2, False)]


def test_concurrent_emits_tell_once_listener_only_once(events: EventListeners) -> None:
    heard: list[Any] = []
    both = threading.Barrier(2)

    def emit() -> None:
        both.wait(30)
        events.emit("coder", "news", {"n": 1})

    for _ in range(50):
        events.on("coder", "news", heard.append, extension="ext", is_once=True)
        threads = [threading.Thread(target=emit) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

    assert heard == [{"n": 1}] * 50


def test_removed_listener_hears_nothing_and_others_continue(events: EventListeners) -> None:
    heard: list[Any] = []
    others: list[Any] = []
    events.on("coder", "news", heard.append, extension="ext")
    events.on("coder", "news", heard.append, extension="ext", is_once=True)
    events.on("coder", "news", lambda event: others.append(event), extension="ext")

    events.off("coder", "news", heard.append)
    events.off("coder", "other", heard.append)
    events.emit("coder", "news", {"n": 1})

    assert (heard, others) == ([], [{"n": 1}])


def test_version_grows_with_every_change(events: EventListeners) -> None:
    versions = [events.version]
    end = events.on("coder", "news", print, extension="ext")
    versions.append(events.version)
    end()
    versions.append(events.version)
    events.clear("coder")
    versions.append(events.version)

    assert versions == sorted(set(versions))
