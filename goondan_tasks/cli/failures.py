"""How a command tells that it failed: in words and with an exit code, never with a traceback.

With ``--json`` stdout gets ``{"error": {"code", "message", "suggestion", "helpUrl"}}``. Two failures
belong to the command line alone and have no page: ``E_USAGE`` and ``E_WAIT_TIMEOUT``.
"""

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from broker_config.embedded import EmbeddedRedisError
from broker_config.settings import Settings, SettingsError
from goondan_tasks.cli.error_text import error_text
from goondan_tasks.cli.exit_codes import BROKEN_PIPE, exit_code_of
from goondan_tasks.cli.output import Output
from goondan_tasks.errors import ConfigError, GoondanError, WaitTimeout
from goondan_tasks.failure import has_page
from goondan_tasks.messages import JsonObject

EXPECTED = (GoondanError, WaitTimeout, SettingsError, EmbeddedRedisError)

_REMEDY = "Correct it in the environment, or give the option of that name."

Command = Callable[..., None]


def reported(command: Command) -> Command:
    """Let ``command`` end with the right exit code, and say why, when it fails."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        try:
            command(**arguments)
        except BrokenPipeError:
            _discard_output()
            raise typer.Exit(BROKEN_PIPE) from None
        except EXPECTED as error:
            failure = describe_failure(error)
            tell(failure, Output(as_json=bool(arguments.get("as_json"))))
            raise typer.Exit(exit_code_of(failure["code"])) from error

    return run


def describe_failure(error: Exception) -> JsonObject:
    """Return ``code`` and ``message`` of one of the :data:`EXPECTED` errors, and what helps."""
    if isinstance(error, WaitTimeout):
        return {"code": "E_WAIT_TIMEOUT", "message": str(error), "callId": error.call_id}
    known = ConfigError(str(error), suggestion=_REMEDY) if isinstance(error, SettingsError) else error
    code: str = getattr(known, "code", GoondanError.code)
    described = {"code": code, "message": str(known)}
    if suggestion := getattr(known, "suggestion", None):
        described["suggestion"] = suggestion
    if isinstance(known, GoondanError) and (known.help_url or has_page(code, known)):
        described["helpUrl"] = known.help_url or help_url() + code
    return described


def tell(failure: JsonObject, output: Output, *, label: str = "Error") -> None:
    """Write a failure: for people to stderr behind its label, for programs to stdout."""
    if output.as_json:
        return output.document({"error": failure})
    return output.note(
        error_text(label, failure["message"], failure.get("suggestion"), failure.get("helpUrl"))
    )


def help_url() -> str:
    """Return where the pages about errors are, even if the other settings are wrong."""
    try:
        return Settings.load().help_url
    except SettingsError:
        return str(Settings.model_fields["help_url"].default)


def _discard_output() -> None:
    """Let nothing more fail: the interpreter flushes stdout once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
