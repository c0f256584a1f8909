"""``goondan explain``: the page about an error, without network access."""

import re
from typing import Annotated

import typer

from goondan_tasks.cli.options import argument, flag
from goondan_tasks.cli.output import Output, help_url, listing
from goondan_tasks.contract.failure import error_pages
from goondan_tasks.contract.wording import closest

_LINK = re.compile(r"\[([^\]]+)\]\([^)\s]+\)")


def explain(
    code: Annotated[
        str | None, argument("CODE", "An error code, such as E_TOOL_TIMEOUT. Default: list all codes.")
    ] = None,
    as_json: Annotated[bool, flag("Print one JSON document on stdout.", "--json")] = False,
) -> None:
    """Print what an error means, why it happens and what to do about it.

    The exit code is 2 if CODE is unknown.
    """
    texts = {name: page.read_text(encoding="utf-8") for name, page in error_pages().items()}
    output = Output(as_json)
    if code is None:
        rows = [{"code": name, "summary": _summary(text)} for name, text in texts.items()]
        return output.write(listing(rows, {"code": "code", "what": "summary"}, unbroken="code"))
    name = code.upper()
    if name not in texts:
        meant = closest(code, texts)
        guess = "" if meant is None else f"Did you mean {meant}? "
        raise typer.BadParameter(
            f"there is no page about {code!r}. {guess}`goondan explain` lists all codes."
        )
    page = {"code": name, "page": texts[name], "helpUrl": help_url() + name}
    return output.give(page, _LINK.sub(r"\1", texts[name]).rstrip())


def _summary(text: str) -> str:
    """Return the first sentence below the heading."""
    paragraph = _LINK.sub(r"\1", text).split("\n\n")[1]
    return re.split(r"(?<=\.)\s", " ".join(paragraph.split()), maxsplit=1)[0]
