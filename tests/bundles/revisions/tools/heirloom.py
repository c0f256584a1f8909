"""Tells the word of the revision, as tools of the older version do."""

from typing import Any

from .words import WORD


async def word(ctx: Any, input: Any) -> str:
    return WORD


handlers = {"heirloom.word": word}
