"""One thread for short work, which another takes over from a piece that lasts."""

import threading
from collections.abc import Callable

from tests.waiting import wait_until
from workers.concurrency.shared_thread import SharedThread
from workers.concurrency.threads import DaemonThreads


class Bench:
    """A shared thread, and who did what."""

    def __init__(self) -> None:
        threads = DaemonThreads(lambda: None)
        threads.start()
        self.woken = 0
        self.shared = SharedThread(threads, self.wake)
        self.did: list[tuple[str, int]] = []

    def wake(self) -> None:
        self.woken += 1

    def work(self, name: str, *, after: Callable[[], object] = lambda: None) -> Callable[[], None]:
        def work() -> None:
            after()
            self.did.append((name, threading.get_ident()))

        return work

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.did]


def test_short_pieces_run_in_order_on_one_thread() -> None:
    bench, go_on = Bench(), threading.Event()
    bench.shared.run(bench.work("first", after=go_on.wait))
    for name in "abc":
        bench.shared.run(bench.work(name))
    go_on.set()

    wait_until(lambda: len(bench.did) == 4)
    assert bench.names == ["first", "a", "b", "c"]
    assert len({ident for _, ident in bench.did}) == 1
    assert bench.woken == 1
    wait_until(lambda: not bench.shared.is_busy)


def test_second_look_frees_pieces_behind_long_piece() -> None:
    bench, go_on, has_begun = Bench(), threading.Event(), threading.Event()

    def lasts() -> None:
        has_begun.set()
        go_on.wait()

    bench.shared.run(bench.work("lasting", after=lasts))
    bench.shared.run(bench.work("behind"))
    assert has_begun.wait(60)
    bench.shared.look()
    assert bench.did == []
    bench.shared.look()

    wait_until(lambda: bench.names == ["behind"])
    wait_until(lambda: not bench.shared.is_busy)
    bench.shared.run(bench.work("later"))
    wait_until(lambda: bench.names == ["behind", "later"])
    go_on.set()
    wait_until(lambda: bench.names == ["behind", "later", "lasting"])


def test_lone_long_piece_delays_no_later_piece() -> None:
    bench, go_on, has_begun = Bench(), threading.Event(), threading.Event()

    def lasts() -> None:
        has_begun.set()
        go_on.wait()

    bench.shared.run(bench.work("lasting", after=lasts))
    assert has_begun.wait(60)
    bench.shared.look()
    bench.shared.look()
    assert not bench.shared.is_busy

    bench.shared.run(bench.work("later"))
    wait_until(lambda: bench.names == ["later"])
    assert bench.woken == 2
    go_on.set()
    wait_until(lambda: bench.names == ["later", "lasting"])
