"""Text that cannot steer a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goondan_tasks.cli.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("한국어 😀", "한국어 😀"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("back\r\x08", "back\\r\\x08"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_steers_a_terminal_is_written_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters()))
def test_what_is_shown_can_always_be_encoded_and_has_no_control_characters(text: str) -> None:
    shown = printable(text)

    shown.encode("utf-8")
    assert all(char.isprintable() or char in "\n\t" for char in shown)
