"""What is written of what a handler tells."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from goondan_tasks.contract.errors import ToolError
from goondan_tasks.contract.output import Progress
from tests.waiting import wait_until
from workers.concurrency.watchdog import Watchdog
from workers.progress_reporter import ProgressReporter


class Post:
    """Takes reports; a test answers them."""

    def __init__(self) -> None:
        self.reports: list[bytes] = []
        self._answers: list[Callable[[Any], object]] = []

    def __call__(self, report: bytes, answered: Callable[[Any], object]) -> None:
        self.reports.append(report)
        self._answers.append(answered)

    def answer(self) -> None:
        self._answers.pop(0)(1)


@pytest.fixture
def post() -> Post:
    return Post()


@pytest.fixture
def report(post: Post) -> Iterator[ProgressReporter]:
    watchdog = Watchdog()
    watchdog.start()
    yield ProgressReporter(post, watchdog)


def test_the_first_report_is_posted_at_once(report: ProgressReporter, post: Post) -> None:
    report(1, 3, "one")
    assert post.reports == [b'{"done":1,"total":3,"message":"one"}']


def test_until_it_is_answered_no_other_is_posted_and_then_the_last_with_a_few_before_it(
    report: ProgressReporter, post: Post
) -> None:
    for step in range(10_000):
        report(step)
    assert post.reports == [b'{"done":0}']
    post.answer()
    wait_until(lambda: len(post.reports) == 2)
    progress = Progress.from_redis(b"0 " + post.reports[1])
    assert progress.done == 9999
    assert [before.done for before in progress.earlier] == list(range(9990, 9999))


def test_what_waits_is_posted_when_the_run_has_ended(report: ProgressReporter, post: Post) -> None:
    report(1)
    report(2)
    report.flush()
    report.flush()
    assert post.reports == [b'{"done":1}', b'{"done":2,"earlier":[{"done":1}]}']


def test_a_run_that_tells_nothing_posts_nothing(report: ProgressReporter, post: Post) -> None:
    report.flush()
    assert post.reports == []


def test_after_a_pause_with_nothing_to_tell_the_next_report_is_posted_at_once(
    report: ProgressReporter, post: Post
) -> None:
    report(1)
    post.answer()
    wait_until(lambda: not report._is_pausing)
    report(2)
    assert post.reports == [b'{"done":1}', b'{"done":2,"earlier":[{"done":1}]}']


def test_what_cannot_be_told_is_refused_and_not_posted(report: ProgressReporter, post: Post) -> None:
    with pytest.raises(ToolError, match="done must be a number"):
        report(float("nan"))
    assert post.reports == []


def test_threads_of_one_handler_may_all_tell(report: ProgressReporter, post: Post) -> None:
    threads = [threading.Thread(target=report, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(post.reports) == 1
