"""What is written of what a handler tells."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker_config import serializer
from goondan_tasks.contract.errors import PayloadTooLargeError, ToolError, ToolOutputError
from goondan_tasks.contract.output import LARGEST_CHUNK, MOST_EMITTED_BYTES, Progress, emit_nowhere
from goondan_tasks.contract.redaction import KnownSecrets
from tests.waiting import wait_until
from workers.concurrency.watchdog import Watchdog
from workers.reporters import OutputEmitter, ProgressReporter, relay_output, void_output


class Post:
    """Takes reports; a test answers them."""

    def __init__(self) -> None:
        self.reports: list[bytes] = []
        self._answers: list[Callable[[Any], object]] = []

    def __call__(self, report: bytes, answered: Callable[[Any], object]) -> None:
        self.reports.append(report)
        self._answers.append(answered)

    def answer(self, answer: int = 1) -> None:
        self._answers.pop(0)(answer)


@pytest.fixture
def post() -> Post:
    return Post()


@pytest.fixture
def report(post: Post) -> Iterator[ProgressReporter[bytes]]:
    watchdog = Watchdog()
    watchdog.start()
    yield ProgressReporter(bytes, post, watchdog.watch)


def test_first_report_is_posted_at_once(report: ProgressReporter[bytes], post: Post) -> None:
    report(1, 3, "one")
    assert post.reports == [b'{"done":1,"total":3,"message":"one"}']


def test_unanswered_report_holds_others_then_posts_last_few(
    report: ProgressReporter[bytes], post: Post
) -> None:
    for step in range(10_000):
        report(step)
    assert post.reports == [b'{"done":0}']
    post.answer()
    wait_until(lambda: len(post.reports) == 2)
    progress = Progress.from_redis(b"0 " + post.reports[1])
    assert progress.done == 9999
    assert [before.done for before in progress.earlier] == list(range(9990, 9999))


def test_waiting_report_is_posted_when_run_ends(report: ProgressReporter[bytes], post: Post) -> None:
    report(1)
    report(2)
    report.flush()
    report.flush()
    assert post.reports == [b'{"done":1}', b'{"done":2,"earlier":[{"done":1}]}']


def test_run_that_tells_nothing_posts_nothing(report: ProgressReporter[bytes], post: Post) -> None:
    report.flush()
    assert post.reports == []


def test_report_after_quiet_pause_is_posted_immediately(report: ProgressReporter[bytes], post: Post) -> None:
    report(1)
    post.answer()
    wait_until(lambda: not report._is_pausing)
    report(2)
    assert post.reports == [b'{"done":1}', b'{"done":2,"earlier":[{"done":1}]}']


def test_invalid_report_is_refused_and_not_posted(report: ProgressReporter[bytes], post: Post) -> None:
    with pytest.raises(ToolError, match="done must be a number"):
        report(float("nan"))
    assert post.reports == []


def test_threads_of_one_handler_may_all_tell(report: ProgressReporter[bytes], post: Post) -> None:
    threads = [threading.Thread(target=report, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(post.reports) == 1


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> KnownSecrets:
    """Know no secrets but those of the test: their beginnings are held back."""
    secrets = KnownSecrets()
    monkeypatch.setattr("workers.reporters.KNOWN_SECRETS", secrets)
    return secrets


@pytest.fixture
def emit(post: Post, secrets: KnownSecrets) -> Iterator[OutputEmitter[bytes]]:
    watchdog = Watchdog()
    watchdog.start()
    yield OutputEmitter({"callId": "c", "attempt": 2}, bytes, post, watchdog.watch)


def events(post: Post) -> list[Any]:
    return [event for posted in post.reports for event in serializer.decode(posted)]


def chunks(post: Post) -> list[Any]:
    return [event["chunk"] for event in events(post)]


def test_first_output_is_immediately_posted_with_shared_fields(
    emit: OutputEmitter[bytes], post: Post
) -> None:
    emit("a\u00e9")
    assert post.reports == [
        '[{"type":"tool_output","callId":"c","attempt":2,"seq":0,"chunk":"a\u00e9"}]'.encode()
    ]


def test_output_before_answer_is_joined_in_order(emit: OutputEmitter[bytes], post: Post) -> None:
    emit("first")
    changed = {"rows": 1}
    for chunk in ("one ", "two ", changed, [2], "three", ""):
        emit(chunk)
    changed["rows"] = 7
    assert len(post.reports) == 1
    post.answer()
    wait_until(lambda: len(post.reports) == 2)
    assert chunks(post) == ["first", "one two ", {"rows": 1}, [2], "three"]
    assert [event["seq"] for event in events(post)] == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("secrets")
def test_waiting_emitter_posts_nothing_before_it_begins(post: Post) -> None:
    emit = OutputEmitter({"callId": "c"}, bytes, post, Watchdog().watch, waits=True)
    emit("short")
    assert post.reports == []
    assert emit.last() == b'[{"type":"tool_output","callId":"c","seq":0,"chunk":"short"}]'
    emit("long")
    emit.begin()
    assert chunks(post) == ["long"]
    assert emit.last() is None


def test_two_halves_of_surrogate_pair_become_one_character(emit: OutputEmitter[bytes], post: Post) -> None:
    emit("x")
    emit("\ud83d")
    emit("\ude00")
    emit.flush()
    assert chunks(post) == ["x", "\U0001f600"]


def test_text_and_json_secrets_are_hidden_across_chunks(
    emit: OutputEmitter[bytes], post: Post, secrets: KnownSecrets
) -> None:
    secrets.add("sesame-of-emitters")
    emit("the key is sesame-")
    assert chunks(post) == ["the key is "]
    emit("of-emitters.")
    emit({"sesame-of-emitters": ["sesame-of-emitters"]})
    emit("sesame")
    emit.flush()
    assert chunks(post) == ["the key is ", "***.", {"***": ["***"]}, "sesame"]


def test_output_beyond_limit_stops_and_followers_learn(emit: OutputEmitter[bytes], post: Post) -> None:
    for _ in range(MOST_EMITTED_BYTES // LARGEST_CHUNK):
        emit("x" * LARGEST_CHUNK)
    for _ in range(3):
        emit("y")
    emit.flush()
    told = events(post)
    assert sum(len(event["chunk"]) for event in told[:-1]) == MOST_EMITTED_BYTES
    assert told[-1].get("truncated") is True and "chunk" not in told[-1]


@pytest.mark.parametrize(
    ("chunk", "error", "message"),
    [
        ("x" * (LARGEST_CHUNK + 1), PayloadTooLargeError, "takes 65537 bytes; at most 65536"),
        ("\u00e9" * LARGEST_CHUNK, PayloadTooLargeError, "takes 131072 bytes"),
        (["x" * LARGEST_CHUNK], PayloadTooLargeError, "takes 65540 bytes"),
        (object(), ToolOutputError, "neither text nor JSON"),
        (b"bytes", ToolOutputError, "neither text nor JSON"),
    ],
)
def test_unemittable_chunk_is_error_even_without_followers(
    emit: OutputEmitter[bytes], post: Post, chunk: Any, error: type[ToolError], message: str
) -> None:
    for emitted in (emit, emit_nowhere):
        with pytest.raises(error, match=message):
            emitted(chunk)
    assert post.reports == []


def test_output_after_stream_end_is_dropped(emit: OutputEmitter[bytes], post: Post) -> None:
    emit("one")
    emit("two")
    post.answer(0)
    emit("three")
    emit.flush()
    assert chunks(post) == ["one"]


def test_handler_that_begins_again_makes_its_output_void(emit: OutputEmitter[bytes], post: Post) -> None:
    void_output(emit)
    emit("one")
    emit("two")
    void_output(emit)
    emit("three")
    emit.flush()
    assert [(event["type"], event.get("chunk")) for event in events(post)] == [
        ("tool_output", "one"),
        ("tool_restart", None),
        ("tool_output", "three"),
    ]


def test_only_events_in_output_of_process_are_relayed(emit: OutputEmitter[bytes], post: Post) -> None:
    emit("one")
    relay_output(emit, [{"seq": 0, "chunk": "x" * (LARGEST_CHUNK + 1)}, {"chunk": {"a": 1}}, "no event"])
    broken: Any
    for broken in (None, 5, [{}], [{"chunk": float("nan")}]):
        relay_output(emit, broken)
    relay_output(emit, [{"truncated": True}, {"chunk": "late"}])
    emit.flush()
    assert [event.get("chunk") for event in events(post)] == [
        "one",
        "x" * (LARGEST_CHUNK + 1),
        {"a": 1},
        None,
    ]
    relay_output(emit_nowhere, [{"chunk": "nobody"}])


@pytest.mark.usefixtures("secrets")
def test_longer_run_emits_rarer_its_output_is_posted(post: Post) -> None:
    pauses: list[float] = []
    emit = OutputEmitter({"callId": "c"}, bytes, post, lambda seconds, _: pauses.append(seconds))
    for _ in range(3_000):
        emit("line")
        emit.begin()
        post.answer()
    assert pauses[0] == 0.05
    assert pauses == sorted(pauses)
    assert pauses[-1] == 1.0
    assert sum(pauses) > 1_000
