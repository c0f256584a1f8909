"""What tools' processes may tell their worker, however they tell it."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from goondan_tasks.authoring.tool_api import Logger
from goondan_tasks.bundle import Bundle, load_bundle
from goondan_tasks.contract.errors import ToolOutputError
from goondan_tasks.contract.failure import DescribedError
from tests.unit.workers.mcp.tool_contexts import Progress, context
from workers.cancellation import Cancellation
from workers.processes import frames
from workers.processes.isolation import Children, IsolatedTool, Isolation


@pytest.fixture
def logger() -> Iterator[tuple[Logger, list[Any]]]:
    with structlog.testing.capture_logs() as lines:
        yield structlog.stdlib.get_logger("test"), lines


@pytest.mark.parametrize("level", ["setLevel", "bind", "__class__", "critical", None, ["info"], {}, 7])
def test_level_that_is_none_is_info_line(logger: tuple[Logger, list[Any]], level: Any) -> None:
    frames.log_line(logger[0], level, "CRITICAL")
    assert logger[1] == [{"event": "CRITICAL", "log_level": "info"}]


def test_fields_of_line_cannot_stand_for_another_call(logger: tuple[Logger, list[Any]]) -> None:
    forged = {
        "call_id": "other",
        "event": "e",
        "exc_info": True,
        "_record": 1,
        "logger": "x",
        "n": [1],
        "": 2,
    }
    frames.log_line(logger[0], "error", "said %s", forged)
    frames.log_line(logger[0], "error", "\ud800", ["no", "fields"])

    assert logger[1] == [
        {
            "event": "said %s",
            "log_level": "error",
            "call_id_": "other",
            "event_": "e",
            "exc_info_": True,
            "_record_": 1,
            "logger_": "x",
            "n": [1],
            "": 2,
        },
        {"event": "\ufffd", "log_level": "error"},
    ]


def test_line_has_bounded_fields_and_texts(logger: tuple[Logger, list[Any]]) -> None:
    fields = {f"f{number}": "x" for number in range(1_000)} | {"f0": "x" * 200_000, "f1": [["x" * 200_000]]}
    frames.log_line(logger[0], "info", "y" * 2_000_000, {**fields, "f2": 10**4_000})

    [line] = logger[1]
    assert len(line) == frames.MOST_FIELDS + 2
    assert len(line["event"]) < frames.LONGEST_LINE + 20
    assert max(len(str(line[name])) for name in ("f0", "f1", "f2")) < frames.LONGEST_FIELD + 20


@pytest.mark.parametrize(
    ("name", "level", "shown"),
    [
        ("tool.own", 25, ("tool.own", "info")),
        ("goondan_tasks.contract.logs", 40, ("goondan.tool", "error")),
        ("workers", 10**30, ("goondan.tool", "critical")),
        ("a\nb", -1, ("goondan.tool", "debug")),
        (None, None, ("goondan.tool", "info")),
    ],
)
def test_record_has_level_and_logger_of_tools(
    monkeypatch: pytest.MonkeyPatch, name: Any, level: Any, shown: tuple[str, str]
) -> None:
    names = list[str]()
    with structlog.testing.capture_logs() as lines:
        made = structlog.get_logger

        def get_logger(name: str) -> Any:
            names.append(name)
            return made(name)

        monkeypatch.setattr(structlog, "get_logger", get_logger)
        frames.log_record(name, level, "said", {})
    assert (names[0], lines[0]["log_level"]) == shown


def test_tool_makes_no_endless_number_of_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_loggers", set())
    with structlog.testing.capture_logs():
        for number in range(2 * frames.MOST_LOGGERS):
            frames.log_record(f"made.up.{number}", 20, "said", {})
    assert len(frames._loggers) == frames.MOST_LOGGERS


@pytest.mark.parametrize("fields", [None, [], {}, {"handle": 5}, {"handle": "h", "ttl_seconds": "1"}])
def test_pending_output_that_is_not_valid_is_error(fields: Any) -> None:
    with pytest.raises(ToolOutputError):
        frames.pending_from(fields)


def test_tool_cannot_claim_to_wait_for_approval() -> None:
    pending = frames.pending_from({"handle": "h", "output": 1, "is_approval": True, "other": 2})
    assert (pending.output, pending.is_approval) == (1, False)


@pytest.mark.parametrize("error", [None, "text", [], {"message": 5, "code": None, "helpUrl": []}])
def test_error_of_another_form_is_error_of_tool(error: Any) -> None:
    told = frames.error_from(error, "https://help/")
    assert (told.code, told.name, told.message, told.help_url) == (
        "E_TOOL",
        "Error",
        "",
        "https://help/E_TOOL",
    )


def test_every_text_of_error_is_bounded() -> None:
    names = ("code", "name", "message", "suggestion", "helpUrl", "traceback")
    told = frames.error_from(dict.fromkeys(names, "x" * 3_000_000), "https://help/", 10**9)

    assert len(str(told.to_wire())) < 30_000
    assert told.help_url is None
    assert told.traceback is not None
    assert len(told.traceback) <= 8_000


def test_lines_beyond_pace_are_counted_keeping_last_progress() -> None:
    pace = frames.Pace()
    kinds = ["log", "progress"] * (frames.MOST_PER_SECOND * 2)
    admitted = [pace.admits(kind, b"%d" % number) for number, kind in enumerate(kinds)]

    lines, progress = pace.taken()
    assert 2 * frames.MOST_PER_SECOND >= sum(admitted) >= frames.MOST_PER_SECOND
    assert lines > 0
    assert progress == b"%d" % (len(kinds) - 1)
    assert pace.taken() == (0, None)
    assert pace.admits("value", b"")


CODE = """
import asyncio
import contextvars
import gc
import logging

from workers.processes.channel import ChildChannel

kept = contextvars.ContextVar("kept", default="nothing")
lock = asyncio.Lock()
loops = set()


def channel():
    return next(one for one in gc.get_objects() if isinstance(one, ChildChannel))


def sends(ctx, input):
    for frame in input["frames"]:
        channel().send(frame.encode())
    return "done"


def fails(ctx, input):
    channel().send(b'[%d,"error",{"message":"%b"}]' % (input["call"], b"x" * input["size"]))
    return "too late"


def floods(ctx, input):
    for number in range(input["reports"]):
        ctx.progress(number)
        ctx.logger.info("line")
    return "done"


def says(ctx, input):
    ctx.logger.info({"half": 1})
    ctx.logger.info("\\ud800")
    ctx.progress(1, 2, "\\ud800")
    logging.warning("%d", "no number")
    return "caf\\udce9"


async def loop(ctx, input):
    loops.add(asyncio.get_running_loop())
    held = asyncio.ensure_future(lock.acquire())
    await asyncio.sleep(0)
    lock.release()
    before = kept.get()
    kept.set("of a call")
    return [len(loops), before]


async def raises(ctx, input):
    raise ValueError("\\ud800")


handlers = {one.__name__: one for one in (sends, fails, floods, says, loop, raises)}
"""


class Calls:
    """Calls isolated tools by name, and remembers their progress."""

    def __init__(self, bundle: Bundle, children: Children) -> None:
        self.progress = Progress()
        self._bundle = bundle
        self._children = children

    def __call__(self, name: str, **args: Any) -> Any:
        """Call a tool with these arguments."""
        bound = self._bundle.bound_tools("clerk")[f"own__{name}"]
        isolated = IsolatedTool(bound, Isolation(self._children, "h/"))
        ctx = context(self.progress)
        return isolated.run(ctx, args, limit_seconds=60, cancellation=Cancellation())


@pytest.fixture
def call(tmp_path: Path) -> Iterator[Calls]:
    names = ["sends", "fails", "floods", "says", "loop", "raises"]
    exports = [{"name": name, "parameters": {"type": "object"}, "isolation": "process"} for name in names]
    documents = [
        {"apiVersion": "goondan.ai/v1", "kind": kind, "metadata": {"name": called}, "spec": spec}
        for kind, called, spec in (
            ("Tool", "own", {"entry": "./own.py", "exports": exports}),
            ("Agent", "clerk", {"tools": ["Tool/own"]}),
        )
    ]
    (tmp_path / "goondan.yaml").write_text(yaml.safe_dump_all(documents), "utf-8")
    (tmp_path / "own.py").write_text(CODE, "utf-8")
    with Children() as children:
        yield Calls(load_bundle(tmp_path), children)


def test_no_child_message_breaks_worker_or_logging(call: Calls) -> None:
    root = logging.getLogger().level
    bodies = [
        '"log",["setLevel","CRITICAL",{}]',
        '"log",["info","forged",{"event":"a","call_id":"other"}]',
        '"log",[["info"],{"a":1},7]',
        '"log",5',
        '"record",["goondan_tasks.contract.logs",25,"call.finished",{"event":1}]',
        '"record",[[],{},[],[]]',
        '"progress",{"done":1,"other":2}',
        '"progress",[]',
        '"progress",{"done":"x"}',
        '"began",null',
        '"unheard",{}',
    ]
    with structlog.testing.capture_logs() as lines:
        assert call("sends", frames=[f"[1,{body}]" for body in bodies]) == "done"
    assert {line.get("call_id") for line in lines} == {None}
    assert [line["event"] for line in lines][:2] == ["CRITICAL", "forged"]
    assert logging.getLogger().level == root


def test_error_of_sixty_megabytes_is_short_error(call: Calls) -> None:
    with pytest.raises(DescribedError, match=r"error takes 60000.* at most") as raised:
        call("fails", call=1, size=60_000_000)
    assert len(raised.value.message) < 200


def test_report_flood_ends_with_last_report_and_count(call: Calls) -> None:
    with structlog.testing.capture_logs() as lines:
        assert call("floods", reports=20_000) == "done"
    assert call.progress.told[-1][0] == 19_999
    assert len(call.progress.told) < 20_000
    assert any("came too fast" in line["event"] for line in lines)


def test_half_surrogate_pair_costs_isolated_tool_nothing(call: Calls) -> None:
    with structlog.testing.capture_logs() as lines:
        assert call("says") == "caf\ufffd"
    assert [line["event"] for line in lines] == ["{'half': 1}", "\ufffd"]
    assert call.progress.told[-1] == (1, 2, "\ufffd")
    with pytest.raises(DescribedError, match="ud800"):
        call("raises")


def test_childs_async_handlers_share_loop_not_context(call: Calls) -> None:
    assert [call("loop") for _ in range(3)] == [[1, "nothing"]] * 3
