"""The pages of the console, over the history of a busy day."""

import http.client
import math
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote, urlsplit

from benchmarks.bench import Bench
from benchmarks.figures import Section, Table, at_most, number
from benchmarks.histories import History, Written, write_history
from broker_config.connections import connect
from broker_config.embedded import EmbeddedRedis
from broker_config.settings import Settings
from goondan_tasks.cli.addresses import listening_socket
from goondan_tasks.client import Client
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.machine.process import url_of
from goondan_web.application import make_application
from goondan_web.doors.console import console_door
from goondan_web.doors.console.rendering import PATH, at
from goondan_web.server import served

#: how often each page is asked for
_TIMES = 50
#: what every page must keep to, at the 95th percentile
MOST_MS, MOST_KB = 300, 60
_BUSY = History(100_000, 60, 30, 10_000, 5_000, 2_000, 1_000_000, approvals=200, days=90)
_QUICK = History(5_000, 5, 10, 500, 250, 600, 1_000_000, approvals=20, days=90)

_TEXT = """\
Every page of the console, asked for {times} times, one after the other, over {calls:,} calls that have ended
(one in twenty with an error), of {agents} agents with {tools} tools each and {conversations:,} conversations;
{dead_letters:,} dead letters, {approvals:,} calls that wait for a person, a trace of {trace_nodes:,} calls,
an output of {output_bytes:,} bytes, {days} days of usage, and hand-offs between all agents.
Milliseconds are those between the request and the last byte of the page; a kB has 1,000 bytes."""


def measure(bench: Bench) -> Section:
    """Measure the pages of the console over 100,000 calls: their time and their size."""
    amounts = _QUICK if bench.options.is_quick else _BUSY
    rows: list[tuple[str, ...]] = []
    slowest, largest = ("", 0.0), ("", 0.0)
    with served_console(amounts) as (url, written):
        for name, address in pages_of(written).items():
            times, size = _asked(url, address)
            high = sorted(times)[math.ceil(0.95 * len(times)) - 1]
            slowest, largest = (
                max(slowest, (name, high), key=_figure),
                max(largest, (name, size), key=_figure),
            )
            rows.append((name, number(statistics.median(times)), number(high), number(size)))
    amount = {name: getattr(amounts, name) for name in History.__slots__}
    aims = [
        at_most(f"p95 of the slowest page, {slowest[0]}", slowest[1], MOST_MS, "ms"),
        at_most(f"size of the largest page, {largest[0]}", largest[1], MOST_KB, "kB"),
    ]
    table = Table("", ("page", "p50, ms", "p95, ms", "kB"), rows)
    return Section("The console", _TEXT.format(times=_TIMES, **amount), [table], aims)


def _figure(named: tuple[str, float]) -> float:
    return named[1]


def pages_of(written: Written) -> Mapping[str, str]:
    """Return the addresses of the pages by what the report calls them."""
    agent, tool, instance = (quote(one, safe="") for one in (written.agent, written.tool, written.instance))
    calls = f"{PATH}/calls"
    return {
        "overview": PATH,
        "calls": calls,
        "calls, as many as a page has": f"{calls}?limit=1000",
        "calls of an agent": f"{calls}?agent={agent}",
        "calls of a tool": f"{calls}?tool={tool}",
        "calls of an agent and a tool": f"{calls}?agent={agent}&tool={tool}",
        "calls of a conversation": f"{calls}?agent={agent}&instance={instance}",
        "calls that failed": f"{calls}?status=error",
        "calls that run": f"{calls}?status=running",
        "a call": at("calls", written.call),
        "a call that failed": at("calls", written.failed_call),
        "a call with 1 MB": at("calls", written.large_call),
        "traces": f"{PATH}/traces",
        "a trace of 2,000": at("traces", written.trace),
        "conversations": f"{PATH}/conversations",
        "conversations, as many as a page has": f"{PATH}/conversations?limit=1000",
        "conversations by key": f"{PATH}/conversations?key=0999",
        "a conversation": at("conversations", written.agent, written.instance),
        "approvals": f"{PATH}/approvals",
        "dead letters": f"{PATH}/dead-letters",
        "queues": f"{PATH}/queues",
        "workers": f"{PATH}/workers",
        "usage": f"{PATH}/usage",
        "usage of 90 days": f"{PATH}/usage?days=90",
        "usage of 90 days by model": f"{PATH}/usage?days=90&by=model",
        "usage of 90 days by user": f"{PATH}/usage?days=90&by=user",
        "bundle": f"{PATH}/bundle",
        "audit": f"{PATH}/audit",
        "schedules": f"{PATH}/schedules",
        "connections": f"{PATH}/connections",
        "try": f"{PATH}/try",
        "try an agent": at("try", written.agent),
        "try a tool": at("try", written.agent, written.tool),
        "search, found": f"{PATH}/search?q={written.call[:8]}",
        "search, nothing": f"{PATH}/search?q=nothing-has-this-name",
    }


@contextmanager
def served_console(amounts: History) -> Iterator[tuple[str, Written]]:
    """Write the history into a private Redis, and serve its console."""
    with EmbeddedRedis() as redis:
        settings = Settings(redis_url=redis.url, max_output_bytes=2 * amounts.output_bytes)
        with connect(redis.url, name="goondan-bench") as connection:
            written = write_history(Ledger(connection, settings), amounts)
        with Client(settings) as client, listening_socket("127.0.0.1", 0) as server:
            application = make_application([console_door(client, settings)], settings, "127.0.0.1")
            with served(application, server):
                yield url_of(server), written


def _asked(url: str, address: str) -> tuple[list[float], float]:
    """Ask for a page many times; return the milliseconds of each time, and its size in kB."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    times, size = list[float](), 0
    try:
        for _ in range(_TIMES):
            begun = time.perf_counter()
            connection.request("GET", address)
            answer = connection.getresponse()
            size = max(size, len(answer.read()))
            times.append((time.perf_counter() - begun) * 1_000)
            assert answer.status in {200, 303}, f"{address}: {answer.status}"
    finally:
        connection.close()
    return times, size / 1_000
