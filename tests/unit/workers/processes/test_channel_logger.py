"""Log lines that another process writes: as JSON, whatever the fields hold."""

from typing import Any

from workers.processes.channel_logger import ChannelLogger


def test_each_level_is_handed_on_with_its_fields() -> None:
    lines = list[list[Any]]()
    logger = ChannelLogger(lines.append)
    logger.debug("a")
    logger.info("b.%s", "c", n=1)
    logger.warning("100%", nested={"list": [None, True]})
    logger.error("d")
    assert lines == [
        ["debug", "a", {}],
        ["info", "b.c", {"n": 1}],
        ["warning", "100%", {"nested": {"list": [None, True]}}],
        ["error", "d", {}],
    ]


def test_fields_without_a_json_form_are_shown_as_python_shows_them() -> None:
    lines = list[list[Any]]()
    ChannelLogger(lines.append).info("odd", number=float("nan"), kind={1})
    assert lines == [["info", "odd", {"number": "nan", "kind": "{1}"}]]


def test_an_exception_becomes_text() -> None:
    lines = list[list[Any]]()
    logger = ChannelLogger(lines.append)
    try:
        raise ValueError("cold")
    except ValueError as error:
        logger.warning("a", exc_info=True)
        logger.error("b", exc_info=error)
    for _, _, fields in lines:
        assert fields["exception"].startswith("Traceback")
        assert fields["exception"].endswith("ValueError: cold")
