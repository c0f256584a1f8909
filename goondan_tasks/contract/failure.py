"""Exceptions as the ``error`` of a result (003 §8.3, 004 ToolCallResultError)."""

import errno
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

from goondan_tasks.contract import errors
from goondan_tasks.contract.errors import GoondanError, ModelError, ToolError, ToolInputValidationError
from goondan_tasks.contract.messages import ToolCallError, ToolCallResult, error_output
from goondan_tasks.contract.names import is_v1_name
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from goondan_tasks.contract.wording import shown

DEFAULT_MESSAGE_LIMIT = 1000

#: upper bounds in characters, whatever a Tool's errorMessageLimit; JSON in Redis may need six bytes for one
LONGEST_MESSAGE = 20_000
LONGEST_HINT = 2_000
LONGEST_NAME = 200
LONGEST_TRACEBACK = 8_000

#: how many exceptions of a group its message names
MOST_INSIDE = 20

#: an exception, a message, or ``{"message": …, "code"?: …, "suggestion"?: …}``
ErrorLike = BaseException | str | Mapping[str, Any]

#: the codes of our errors
OUR_CODES = frozenset(
    kind.code
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, GoondanError) and kind is not GoondanError
)

_SUFFIX = "... (truncated)"

#: how many places of exceptions are remembered with their lines
MOST_PLACES = 200

#: the lines of a traceback's frames, by their code objects and instructions
_FRAMES: dict[tuple[tuple[CodeType, int], ...], str] = {}

_HEADER = "Traceback (most recent call last):\n"

_MISSING = object()

#: read what an exception and its class have without asking them: their own code might raise
_fields_of = vars(BaseException)["__dict__"].__get__
_arguments_of = vars(BaseException)["args"].__get__
_kinds_of = vars(type)["__mro__"].__get__
_vars_of = vars(type)["__dict__"].__get__


class DescribedError(ToolError):
    """A failure in another process, which has already described it with :func:`describe`."""

    def __init__(self, description: ToolCallError) -> None:
        super().__init__(description.message, code=description.code, suggestion=description.suggestion)
        self.help_url = description.help_url
        self.description = description


def describe(
    error: BaseException,
    *,
    help_url: str,
    message_limit: int = DEFAULT_MESSAGE_LIMIT,
    default: type[GoondanError] = ToolError,
) -> ToolCallError:
    """Describe ``error`` for the model.

    String attributes ``code``, ``suggestion`` and ``help_url`` are copied. Without ``code``, an OSError has
    the name of its errno, anything else the code of ``default`` (DESIGN §6). An ExceptionGroup, such as a
    TaskGroup raises, has the messages of the exceptions inside, and their code if it is the same in all. Our
    own codes point to the page ``help_url`` + code. All texts are bounded.
    """
    if isinstance(error, DescribedError):
        # the other process does not know our secrets
        told = ToolCallError.from_wire(KNOWN_SECRETS.hidden_in_answer(error.description.to_wire()))
        traceback = error.description.traceback
        return told if traceback is None else told.with_traceback(_clean(traceback)[-LONGEST_TRACEBACK:])
    code = (_code(error) or default.code)[:LONGEST_NAME]
    is_ours = isinstance(error, GoondanError) or code == default.code
    suggestion = _text(error, "suggestion") or missing_package(error)
    suggestion = suggestion or (default.suggestion if is_ours else None)
    page = _text(error, "help_url") or ""
    if not page or len(page) > LONGEST_HINT:  # a URL must not be cut
        page = help_url + code if has_page(code, error) else ""
    described = ToolCallError(
        code=code,
        name=_clean(type(error).__name__)[:LONGEST_NAME],
        message=fitted_message(message_of_error(error), message_limit),
        suggestion=None if suggestion is None else truncate(suggestion, LONGEST_HINT),
        help_url=page or None,
    )
    return described.with_retry_after(error.retry_after) if isinstance(error, ModelError) else described


def missing_package(error: BaseException) -> str | None:
    """Say which package to install, and which line needs it, if ``error`` is its failed import."""
    package = (error.name or "").partition(".")[0] if type(error) is ModuleNotFoundError else ""
    if not package or package in sys.modules:  # the package is there, but lacks a module
        return None
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (needed by {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"Install {package}{place}, and name it in spec.requirements."


def as_exception(error: ErrorLike, default: type[GoondanError] = ToolError) -> BaseException:
    """Return an error as an exception, which is of the class ``default`` unless ``error`` is one.

    Raises:
        ToolInputValidationError: ``error`` is none of these, or has no message.
    """
    if isinstance(error, BaseException):
        return error
    if isinstance(error, str):
        return default(error)
    fields: Any = error
    if not isinstance(fields, Mapping) or not isinstance(fields.get("message"), str):
        raise ToolInputValidationError(f"An error has a message, as text: {shown(fields)} has none.")
    texts = {name: fields[name] for name in ("code", "suggestion") if isinstance(fields.get(name), str)}
    return default(fields["message"], **texts)


def has_page(code: str, error: BaseException | None = None) -> bool:
    """Return whether ``code`` is one of ours, not a tool's own.

    Tools may use the codes of changesets and git for their own failures; there the class of ``error``
    decides.
    """
    documents_every_code = isinstance(error, GoondanError) and error.documents_every_code
    return code in OUR_CODES or code.startswith("E_CONFIG_") or documents_every_code


def error_pages() -> dict[str, Path]:
    """Return the files about errors by code, from the installed package or the source tree."""
    here = Path(__file__).parents[1]
    folder = next(filter(Path.is_dir, (root / "docs/errors" for root in (here, here.parent))), here)
    return {file.stem: file for file in sorted(folder.glob("*.md")) if file.stem != "README"}


def fitted_message(message: str, limit: int) -> str:
    """Prepare a message for a result: encodable, without secrets, at most ``limit`` characters."""
    return truncate(_clean(message), min(limit, LONGEST_MESSAGE))


def truncate(message: str, limit: int) -> str:
    """Cut ``message`` to ``limit`` characters, including a suffix that says so.

    With a limit shorter than the suffix there is none (DESIGN §6; 003 §8.4 would make the text longer).
    """
    if len(message) <= limit:
        return message
    if limit <= len(_SUFFIX):
        return message[:limit]
    return message[: limit - len(_SUFFIX)] + _SUFFIX


def traceback_text(error: BaseException) -> str:
    """Return the end of an exception's traceback, without secrets and without the worker's own frames."""
    begin = error.__traceback__
    while begin is not None and begin.tb_next is not None and _is_of_worker(begin):
        begin = begin.tb_next
    simple = _simple_message(error)
    if simple is None or begin is None or error.__cause__ is not None or error.__context__ is not None:
        text = "".join(traceback.format_exception(type(error), error, begin))
    else:
        kind = type(error)
        prefix = "" if kind.__module__ in ("__main__", "builtins") else f"{kind.__module__}."
        text = f"{_HEADER}{_frames_text(begin)}{prefix}{kind.__qualname__}: {simple}\n"
    return _clean(text)[-LONGEST_TRACEBACK:]


def _frames_text(begin: TracebackType) -> str:
    """Return the lines of a traceback's frames; the same place is mostly formatted once."""
    places, place = [], begin
    while place is not None:
        places.append((place.tb_frame.f_code, place.tb_lasti))
        place = place.tb_next  # type: ignore[assignment]
    key = tuple(places)
    text = _FRAMES.get(key)
    if text is None:
        text = "".join(traceback.format_tb(begin))
        if len(_FRAMES) >= MOST_PLACES:
            _FRAMES.clear()
        _FRAMES[key] = text
    return text


def _is_of_worker(place: TracebackType) -> bool:
    module = str(place.tb_frame.f_globals.get("__name__"))
    return module.startswith("workers.") and not module.startswith("workers.builtin.")


def _text(error: BaseException, attribute: str) -> str | None:
    """Return a text that an exception or its class has under a name, without running code of either."""
    value = _fields_of(error).get(attribute, _MISSING)
    if value is _MISSING:
        value = None
        for kind in _kinds_of(type(error)):
            if attribute in (own := _vars_of(kind)):
                value = own[attribute]
                break
    return (_clean(value) or None) if issubclass(type(value), str) else None


def _code(error: BaseException) -> str | None:
    if isinstance(error, BaseExceptionGroup) and not _text(error, "code"):
        codes = {_code(inner) for inner in _inside(error)}
        return codes.pop() if len(codes) == 1 else None
    errno_name = errno.errorcode.get(error.errno or 0) if isinstance(error, OSError) else None
    return _text(error, "code") or errno_name


def _inside(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the first MOST_INSIDE exceptions inside a group that are no groups themselves."""
    found: list[BaseException] = []
    waiting: list[BaseException] = [group]
    while waiting and len(found) < MOST_INSIDE:
        error = waiting.pop()
        if isinstance(error, BaseExceptionGroup):
            waiting.extend(reversed(BaseExceptionGroup.exceptions.__get__(error)))
        else:
            found.append(error)
    return found


def message_of_error(error: BaseException) -> str:
    """Return the message of an exception; that of a group names the exceptions inside, with their codes."""
    if isinstance(error, GoondanError) and (own := _text(error, "message")):
        return own
    simple = _simple_message(error)
    if simple is not None:
        return simple.strip()
    text = "".join(traceback.format_exception_only(error)).strip()  # safe if __str__ raises
    if isinstance(error, SyntaxError):
        return text
    message = text.partition(": ")[2] or text
    if not isinstance(error, BaseExceptionGroup):
        return message
    reasons = (f"{_code(one) or type(one).__name__}: {message_of_error(one)}" for one in _inside(error))
    return f"{message}: {'; '.join(reasons)}"


def _simple_message(error: BaseException) -> str | None:
    """Return the only argument of an exception if it is a text and all that the exception says."""
    arguments = _arguments_of(error)
    if type(error).__str__ is not BaseException.__str__ or len(arguments) != 1:
        return None
    [message] = arguments
    is_all = type(message) is str and message.strip() and "__notes__" not in _fields_of(error)
    return message if is_all and not isinstance(error, BaseExceptionGroup | SyntaxError) else None


def named_error(error: BaseException) -> str:
    """Return the name of an exception's class and, if there is one, its message."""
    name, message = type(error).__name__, message_of_error(error)
    return name if message in ("", name) else f"{name}: {message}"


def _clean(text: str) -> str:
    """Return an encodable text without secrets. Cut it only afterwards, or half a secret may stay."""
    return str(KNOWN_SECRETS.hidden_in_answer(str.encode(text, "utf-8", "backslashreplace").decode("utf-8")))


def with_error_in_output(result: ToolCallResult) -> ToolCallResult:
    """Copy a result's error into its output, unless it has an output."""
    if result.status != "error" or result.output is not None:
        return result
    return result.model_copy(update={"output": error_output(result)})


def with_error_in_output_by_name(result: ToolCallResult) -> ToolCallResult:
    """Do the same for a tool that no worker knows; a dot in its name means the older version."""
    is_dotted = "." in result.tool_name and is_v1_name(result.tool_name)
    return with_error_in_output(result) if is_dotted else result
