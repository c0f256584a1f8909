"""A ToolCallResult for people."""

import json
from typing import Any

from rich.text import Text

from goondan_tasks.cli.call_view import duration_text
from goondan_tasks.cli.error_text import result_error_text
from goondan_tasks.cli.output import Output
from goondan_tasks.cli.printable import on_one_line
from goondan_tasks.messages import ToolCallResult

_STYLES = {"ok": "bold green", "error": "bold red", "pending": "bold yellow"}


def show_result(result: ToolCallResult, output: Output) -> None:
    """Print a result: for programs the record as it is on the wire."""
    if output.as_json:
        return output.document(result.to_wire())
    output.note(headline(result))
    if result.error is not None:
        return output.print(result_error_text(result.error))
    output.print(pretty(result.output))
    if result.meta.output_file is not None:
        output.note(f"The output is too large to stand here. See it with: goondan output {result.meta.id}")
    return None


def headline(result: ToolCallResult, name: str | None = None) -> Text:
    """Say in one line how a call ended, what it was, by default its tool, who ran it and how long."""
    meta = result.meta
    duration = None if meta.duration_ms is None else duration_text(meta.duration_ms / 1000)
    handle = None if result.handle is None else f"handle {result.handle}"
    facts = [name or result.tool_name, duration, meta.worker, handle, f"id {meta.id}"]
    line = Text().append(result.status, style=_STYLES[result.status])
    return line.append("  " + on_one_line(" · ".join(fact for fact in facts if fact)))


def pretty(value: Any) -> str:
    """Write a text as it is, anything else as indented JSON."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
