"""Describing failures: an exception becomes the ``error`` of a result (003 §8.3, 004 ToolCallResultError)."""

import errno
import inspect
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from goondan_tasks import errors
from goondan_tasks.errors import GoondanError, ModelError, ToolError, ToolInputValidationError
from goondan_tasks.messages import JsonObject, ToolCallError, ToolCallResult
from goondan_tasks.names import is_v1_name
from goondan_tasks.redaction import KNOWN_SECRETS

DEFAULT_MESSAGE_LIMIT = 1000

#: upper bounds in characters, regardless of a Tool's errorMessageLimit; in Redis a byte may take six
LONGEST_MESSAGE = 20_000
LONGEST_HINT = 2_000
LONGEST_NAME = 200
LONGEST_TRACEBACK = 8_000

#: an exception, a message, or ``{"message": …, "code"?: …, "suggestion"?: …}``
ErrorLike = BaseException | str | Mapping[str, Any]

_OURS = frozenset(
    kind.code
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, GoondanError) and kind is not GoondanError
)

_SUFFIX = "... (truncated)"


class DescribedError(ToolError):
    """A failure that :func:`describe` described in another process, where it happened."""

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

    String attributes ``code``, ``suggestion`` and ``help_url`` are copied; an OSError's code is its
    errno name; anything else has the code of ``default``, ``E_TOOL`` (DESIGN §6). Codes of ours
    point to our own page: ``help_url`` + code. All texts
    are bounded.
    """
    if isinstance(error, DescribedError):
        # the other process does not know our secrets
        told = ToolCallError.from_wire(KNOWN_SECRETS.hidden_in_answer(error.description.to_wire()))
        traceback = error.description.traceback
        return told if traceback is None else told.with_traceback(_fit(traceback)[-LONGEST_TRACEBACK:])
    errno_name = errno.errorcode.get(error.errno or 0) if isinstance(error, OSError) else None
    code = (_text(error, "code") or errno_name or default.code)[:LONGEST_NAME]
    is_ours = isinstance(error, GoondanError) or code == default.code
    suggestion = _text(error, "suggestion") or missing_package(error)
    suggestion = suggestion or (default.suggestion if is_ours else None)
    page = _text(error, "help_url") or ""
    if not page or len(page) > LONGEST_HINT:  # a URL that was cut leads nowhere
        page = help_url + code if has_page(code, error) else ""
    described = ToolCallError(
        code=code,
        name=_fit(type(error).__name__)[:LONGEST_NAME],
        message=fitted_message(_message(error), message_limit),
        suggestion=None if suggestion is None else truncate(suggestion, LONGEST_HINT),
        help_url=page or None,
    )
    return described.retried_after(error.retry_after) if isinstance(error, ModelError) else described


def missing_package(error: BaseException) -> str | None:
    """Say what to install, and for which line, if a package was imported that is not there."""
    package = (error.name or "").partition(".")[0] if type(error) is ModuleNotFoundError else ""
    if not package or package in sys.modules:  # what lacks only a module of it has another version
        return None
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" (needed by {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace else ""
    return f"Install {package}{place}, and name it in spec.requirements."


def as_exception(error: ErrorLike, default: type[GoondanError] = ToolError) -> BaseException:
    """Return an error as an exception; of the class ``default`` unless it is one.

    Raises:
        ToolInputValidationError: it is none of these, or has no message.
    """
    if isinstance(error, BaseException):
        return error
    if isinstance(error, str):
        return default(error)
    fields: Any = error
    if not isinstance(fields, Mapping) or not isinstance(fields.get("message"), str):
        raise ToolInputValidationError(f"An error has a message, as text: {fields!r:.200} has none.")
    texts = {name: fields[name] for name in ("code", "suggestion") if isinstance(fields.get(name), str)}
    return default(fields["message"], **texts)


def has_page(code: str, error: BaseException | None = None) -> bool:
    """Return whether ``code`` is one of ours: a tool's own codes have no page here.

    The codes of changesets and git are words that a tool may use for its own failures: for them, the class
    of ``error`` decides.
    """
    documents_every_code = isinstance(error, GoondanError) and error.documents_every_code
    return code in _OURS or code.startswith("E_CONFIG_") or documents_every_code


def error_pages() -> dict[str, Path]:
    """Return the pages about errors, by code: those in the installed package, or in the source tree."""
    here = Path(__file__).parent
    folder = next(filter(Path.is_dir, (root / "docs/errors" for root in (here, here.parent))), here)
    return {file.stem: file for file in sorted(folder.glob("*.md")) if file.stem != "README"}


def fitted_message(message: str, limit: int) -> str:
    """Return a message as results hold it: encodable, without secrets, and cut to ``limit`` characters."""
    return truncate(_fit(message), min(limit, LONGEST_MESSAGE))


def truncate(message: str, limit: int) -> str:
    """Cut ``message`` to ``limit`` characters, the suffix that says so included.

    A limit shorter than the suffix cuts plainly (DESIGN §6; 003 §8.4 would make the text longer).
    """
    if len(message) <= limit:
        return message
    if limit <= len(_SUFFIX):
        return message[:limit]
    return message[: limit - len(_SUFFIX)] + _SUFFIX


def traceback_text(error: BaseException) -> str:
    """Return an exception's traceback without secrets; of a long one the end, which says most.

    It begins where the worker has called what failed.
    """
    begin = error.__traceback__
    while begin is not None and begin.tb_next is not None and _is_of_worker(begin):
        begin = begin.tb_next
    return _fit("".join(traceback.format_exception(type(error), error, begin)))[-LONGEST_TRACEBACK:]


def _is_of_worker(place: TracebackType) -> bool:
    module = str(place.tb_frame.f_globals.get("__name__"))
    return module.startswith("workers.") and not module.startswith("workers.builtin.")


def _text(error: BaseException, attribute: str) -> str | None:
    # a property of a handler's exception could raise in turn, so no code of the exception is run here
    value = inspect.getattr_static(error, attribute, None)
    return (_fit(value) or None) if issubclass(type(value), str) else None


def _message(error: BaseException) -> str:
    if isinstance(error, GoondanError) and (own := _text(error, "message")):
        return own
    text = "".join(traceback.format_exception_only(error)).strip()  # safe if __str__ raises
    if isinstance(error, SyntaxError):
        return text
    return text.partition(": ")[2] or text


def _fit(text: str) -> str:
    """Return an encodable text without secrets; cutting it first would leave half a secret in it."""
    return str(KNOWN_SECRETS.hidden_in_answer(str.encode(text, "utf-8", "backslashreplace").decode("utf-8")))


def error_output(result: ToolCallResult) -> JsonObject:
    """Return the error of a result as an output: ``{status, error: {message, name, code}}``."""
    error = result.error
    told = {} if error is None else {"message": error.message, "name": error.name, "code": error.code}
    return {"status": "error", "error": told}


def with_error_in_output(result: ToolCallResult) -> ToolCallResult:
    """Return a result with its error in its output, unless it has an output, or no error."""
    if result.status != "error" or result.output is not None:
        return result
    return result.model_copy(update={"output": error_output(result)})


def with_error_in_output_by_name(result: ToolCallResult) -> ToolCallResult:
    """Return the same for a tool that no worker has: a dot in its name means the older version."""
    is_dotted = "." in result.tool_name and is_v1_name(result.tool_name)
    return with_error_in_output(result) if is_dotted else result
