"""JSON on the command line: as text, ``@file`` or ``-`` for stdin (DESIGN "Commands")."""

import sys
from pathlib import Path
from typing import Any, BinaryIO

import typer

from broker_config import serializer
from goondan_tasks.json_values import shown
from goondan_tasks.messages import JsonObject

#: far above any limit of a payload: a file that never ends is refused, not read
MAX_BYTES = 64 * 1024 * 1024


def parse_json(text: str) -> Any:
    """Read the JSON that ``text`` holds or names.

    Raises:
        typer.BadParameter: there is no such file, or what it holds is no JSON.
    """
    try:
        return serializer.decode(_content(text))
    except serializer.NotJsonError as error:
        raise typer.BadParameter(
            f'is no JSON ({error}). Write JSON text such as \'{{"path": "a.txt"}}\', @FILE, or - for stdin.'
        ) from error
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{_named(text)} is not UTF-8 text.") from error
    except OSError as error:
        raise typer.BadParameter(f"{_named(text)} cannot be read: {error.strerror or error}.") from error


def parse_object(text: str) -> JsonObject:
    """Read the JSON object that ``text`` holds or names; raises as :func:`parse_json` does."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise typer.BadParameter(f"must be a JSON object such as {{}}, not {shown(value)}.")
    return value


def parse_input(text: str) -> Any:
    """Read what ``text`` holds or names: JSON, or else plain text as it is.

    Raises:
        typer.BadParameter: there is no such file, or it is no text.
    """
    try:
        content = _content(text)
        return serializer.decode(content)
    except serializer.NotJsonError:
        return content
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{_named(text)} is not UTF-8 text.") from error
    except OSError as error:
        raise typer.BadParameter(f"{_named(text)} cannot be read: {error.strerror or error}.") from error


def _content(text: str) -> str:
    if text == "-":
        if sys.stdin is None or sys.stdin.closed:
            raise typer.BadParameter("- reads stdin, but stdin is closed.")
        return _bounded(sys.stdin.buffer, text)
    if text.startswith("@"):
        with Path(text[1:]).open("rb") as file:
            return _bounded(file, text)
    return text


def _bounded(file: BinaryIO, text: str) -> str:
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise typer.BadParameter(f"{_named(text)} is larger than {MAX_BYTES // 1024**2} MiB.")
    return data.decode("utf-8-sig")


def _named(text: str) -> str:
    return "stdin" if text == "-" else f"the file {text[1:]!r}"
