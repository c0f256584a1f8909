"""Log events as lines."""

import json
import re
from typing import Any

import pytest

from goondan_tasks.contract.log_lines import Form, LineRenderer
from goondan_tasks.contract.redaction import KNOWN_SECRETS

EVENT = {
    "event": "notes.added",
    "level": "warning",
    "logger": "goondan.tool",
    "timestamp": "2026-01-02T03:04:05.000006Z",
    "call_id": "6f1c2d3e-4a5b",
    "note": "two words",
    "count": 2,
    "empty": "",
}


def line(form: Form = "console", *, is_colored: bool = False, **fields: Any) -> str:
    """Render EVENT with more fields."""
    return LineRenderer(form, is_colored=is_colored)(None, "warning", {**EVENT, **fields})


def test_console_line_has_aligned_heads_and_sorted_fields() -> None:
    assert line() == (
        "2026-01-02T03:04:05.000006Z [warning  ] notes.added                    [goondan.tool] "
        "call_id=6f1c2d3e-4a5b count=2 empty='' note='two words'"
    )


def test_json_line_shows_non_json_values_by_repr() -> None:
    read = json.loads(line("json", path=re.compile("a")))
    assert read == {**EVENT, "path": "re.compile('a')"}


@pytest.mark.parametrize("form", ["console", "dev", "json"])
def test_secret_is_hidden_in_event_field_and_traceback(form: Form) -> None:
    KNOWN_SECRETS.add("swordfish-opens")
    try:
        raise ValueError("swordfish-opens")
    except ValueError as error:
        shown = line(form, event="said swordfish-opens", note="swordfish-opens", exc_info=error)
    assert "swordfish" not in shown
    assert "ValueError: ***" in shown


def test_colored_line_equals_plain_escaping_hostile_fields() -> None:
    hostile: dict[str, Any] = {"note": "a\x1b[2Jb", "who": "x\ny", "event": "seen\x1b[1m"}
    colored = line(is_colored=True, **hostile)
    assert "\x1b[33m" in colored
    assert re.sub(r"\x1b\[(?:\d+)?m", "", colored) == line(**hostile)
    assert line(**hostile).isprintable()


WORDS: dict[str, Any] = {"note": "word", "empty": "-", "rate": 1e-07, "none": None, "is_done": True}


@pytest.mark.parametrize(
    "fields", [{}, {"exception": "Trace:\n  no\x1b"}, {"exception": 5}, {"%(note)s": "a", "b)": "c"}]
)
def test_line_of_words_matches_line_with_quoted_fields(fields: dict[str, Any]) -> None:
    colored = line(is_colored=True, **WORDS, **fields)
    assert re.sub(r"\x1b\[(?:\d+)?m", "", colored) == line(**WORDS, **fields)


def test_secrets_are_hidden_in_lines_of_words() -> None:
    KNOWN_SECRETS.add("swordfish-opens")
    assert "note=***" in line(**WORDS | {"note": "swordfish-opens"})
    assert "note=word password=***" in line(**WORDS, password="opens")
    assert "swordfish" not in line(**WORDS, exception="ValueError: swordfish-opens")


def test_traceback_follows_on_lines_of_its_own() -> None:
    first, *rest = line(exception="Traceback:\n  a\x1b[2J").splitlines()
    assert first == line()
    assert rest == ["Traceback:", "  a\\x1b[2J"]
