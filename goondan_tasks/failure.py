"""An exception -> the ``error`` of a result (003 §8.3, 004 ToolCallResultError)."""

import errno
import inspect
import traceback

from goondan_tasks.errors import GoondanError, ToolError
from goondan_tasks.messages import ToolCallError

DEFAULT_MESSAGE_LIMIT = 1000

_SUFFIX = "... (truncated)"


class DescribedError(ToolError):
    """A failure that :func:`describe` described in another process, where it happened."""

    def __init__(self, description: ToolCallError) -> None:
        super().__init__(description.message, code=description.code, suggestion=description.suggestion)
        self.help_url = description.help_url
        self.description = description


def describe(
    error: BaseException, *, help_url: str, message_limit: int = DEFAULT_MESSAGE_LIMIT
) -> ToolCallError:
    """Describe ``error`` for the model.

    String attributes ``code``, ``suggestion`` and ``help_url`` are copied; an OSError's code is its
    errno name; anything else is ``E_TOOL`` (DESIGN §6). Errors of ours, and those without a code,
    point to our own page: ``help_url`` + code.
    """
    if isinstance(error, DescribedError):
        return error.description
    code = _text(error, "code") or _errno_name(error) or ToolError.code
    is_ours = isinstance(error, GoondanError) or code == ToolError.code
    return ToolCallError(
        code=code,
        name=type(error).__name__,
        message=truncate(_printable(_message(error)), message_limit),
        suggestion=_text(error, "suggestion") or (ToolError.suggestion if is_ours else None),
        help_url=_text(error, "help_url") or (help_url + code if is_ours else None),
    )


def truncate(message: str, limit: int) -> str:
    """Cut ``message`` to ``limit`` characters, the suffix that says so included.

    A limit shorter than the suffix cuts plainly (DESIGN §6; 003 §8.4 would make the text longer).
    """
    if len(message) <= limit:
        return message
    if limit <= len(_SUFFIX):
        return message[:limit]
    return message[: limit - len(_SUFFIX)] + _SUFFIX


def _text(error: BaseException, attribute: str) -> str | None:
    # a property of a stranger's exception could raise in turn, so nothing is called here
    value = inspect.getattr_static(error, attribute, None)
    return _printable(value) if isinstance(value, str) and value else None


def _errno_name(error: BaseException) -> str | None:
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno)
    return None


def _message(error: BaseException) -> str:
    if isinstance(error, GoondanError):
        return error.message
    text = "".join(traceback.format_exception_only(error)).strip()  # safe if __str__ raises
    if isinstance(error, SyntaxError):
        return text
    return text.partition(": ")[2] or text


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
