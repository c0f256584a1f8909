"""Tells the word of the revision, found when the tool is called."""

import logging
import os
import sys
import time
from typing import Any

from goondan_tasks.tool_api import ToolContext

log = logging.getLogger(__name__)


def word(ctx: ToolContext, input: Any) -> str:
    from .words import WORD  # a running call imports it late

    log.debug("the word is %s", WORD)
    return WORD


def hang(ctx: ToolContext, input: Any) -> str:
    (ctx.workdir / "hanging").touch()
    while not (ctx.workdir / "go-on").exists():
        time.sleep(0.01)
    return word(ctx, input)


def pid(ctx: ToolContext, input: Any) -> int:
    return os.getpid()


def census(ctx: ToolContext, input: Any) -> int:
    return sum(name.startswith("goondan_tasks.authoring.entry_modules.") for name in sys.modules)


handlers = {"word": word, "hang": hang, "pid": pid, "census": census}
