"""Writes docs/reference/client.md from the signatures and docstrings of the client.

``python -m tests.docs.client_page`` writes the page again; a test compares both.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from goondan_tasks.authoring.handoff import EventFields
from goondan_tasks.client import AsyncClient, AsyncPendingCall, Client, PendingCall
from goondan_tasks.client.approvals import ApprovalClient
from goondan_tasks.client.bundles import BundleClient
from goondan_tasks.client.connection import ClientConnection
from goondan_tasks.client.letters import LetterClient
from goondan_tasks.client.operations import OperatorClient
from goondan_tasks.client.requests import RequestClient
from goondan_tasks.client.schedules import Schedules
from goondan_tasks.contract import errors
from goondan_tasks.contract.calls import CallFields
from goondan_tasks.contract.messages import ToolCallResult
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "client.md"

_INTRODUCTION = """\
# The Python client

`goondan_tasks.client` has two clients with the same methods: `Client` blocks the thread that calls it,
`AsyncClient` is for asyncio. [In your web app](../how-to/in-your-web-app.md) shows both in use. This page is
made from the docstrings, by `python -m tests.docs.client_page`.

"""
_ASYNC = """\
Its methods are those of [`Client`](#client), with the same arguments and errors. Instead of a `PendingCall`
they return an [`AsyncPendingCall`](#asyncpendingcall), and `turn` returns an `AsyncTurn`. Both clients have
[`schedules`](#schedules); those of the `AsyncClient` have coroutines.

| | methods |
|---|---|
"""
_RESULT = """\
The fields are described in [Records](records.md#toolcallresult). An error of a call is in `error`, and is
not raised.

| field | type |
|---|---|
"""
_KEYWORDS = """\
The optional keywords of `submit`, `call` and `start_call` are `CallFields`, those of `request`, `start_turn`,
`request_stream` and `send` are `EventFields`. [Records](records.md) describes the fields.

| | keyword | type |
|---|---|---|
"""
_ERRORS = """\
All are subclasses of `goondan_tasks.errors.GoondanError`: `code`, `message`, `suggestion`, `help_url`.

| error | code | suggestion |
|---|---|---|
"""

_KINDS = (Client, ApprovalClient, LetterClient, OperatorClient, BundleClient, RequestClient, ClientConnection)
#: the names of methods that both clients have
METHODS = [
    name
    for name in dict.fromkeys(["connect", "close", *(name for kind in _KINDS for name in vars(kind))])
    if not name.startswith("_") and hasattr(AsyncClient, name) and callable(getattr(Client, name))
]
_ENTRY = re.compile(r"^(?=\S)((?:\w+, )*\w+): ", re.MULTILINE)
_ROLE = re.compile(r":(?:meth|class|mod|func|data):`(?:~[\w.]*\.)?([\w.]+)`")


def text() -> str:
    """Return the page."""
    calls = (PendingCall, AsyncPendingCall)
    return "".join(
        [
            _INTRODUCTION,
            f"## Client\n\n{_prose(Client)}\n\n",
            *(_method(Client, name) for name in METHODS),
            f"## AsyncClient\n\n{_prose(AsyncClient)}\n\n{_ASYNC}",
            *_kinds(),
            *(f"\n## {kind.__name__}\n\n{_prose(kind)}\n\n{_methods(kind)}" for kind in (*calls, Schedules)),
            f"\n## ToolCallResult\n\n{_prose(ToolCallResult)} {_RESULT}",
            *(
                f"| `{name}` | {_code(field.annotation)} |\n"
                for name, field in ToolCallResult.model_fields.items()
            ),
            f"\n## Keywords\n\n{_KEYWORDS}",
            *(
                f"| `{kind.__name__}` | `{name}` | {_code(annotation)} |\n"
                for kind in (CallFields, EventFields)
                for name, annotation in kind.__annotations__.items()
            ),
            f"\n## Errors\n\n{_ERRORS}",
            *_error_rows(),
        ]
    )


def _methods(kind: type) -> str:
    names = [name for name, value in vars(kind).items() if not name.startswith("_") and callable(value)]
    hidden = {"in_thread", "wait"}  # for the clients, and an earlier name
    return "".join(_method(kind, name) for name in names if name not in hidden)


def _method(kind: type, name: str) -> str:
    method = getattr(kind, name)
    return f"### {kind.__name__}.{name}\n\n`{_signature(method)}`\n\n{_prose(method)}\n\n{_raised(method)}"


def _signature(method: Callable[..., Any]) -> str:
    [node] = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    node.args.args = node.args.args[1:]
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    start = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{start}{node.name}({ast.unparse(node.args)}){returned}".replace("'", '"')


def _prose(documented: Any) -> str:
    doc = inspect.cleandoc(documented.__doc__).partition("\nRaises:\n")[0].strip()
    return _markdown(doc)


def _markdown(doc: str) -> str:
    return _ROLE.sub(r"`\1`", doc).replace("``", "`")


def entries(method: Any) -> Iterator[tuple[list[str], str]]:
    """Yield the errors that a docstring lists, each with the condition."""
    _, _, raised = inspect.cleandoc(method.__doc__).partition("\nRaises:\n")
    pieces = _ENTRY.split(textwrap.dedent(raised))[1:]
    for names, condition in zip(pieces[::2], pieces[1::2], strict=True):
        yield names.split(", "), " ".join(condition.split())


def _raised(method: Any) -> str:
    rows = [
        f"| {', '.join(map(_linked, names))} | {_markdown(condition)} |\n"
        for names, condition in entries(method)
    ]
    return "".join(["| raises | |\n|---|---|\n", *rows, "\n"]) if rows else ""


def _linked(name: str) -> str:
    code = getattr(getattr(errors, name, None), "code", None)
    has_page = code and (ROOT / "docs" / "errors" / f"{code}.md").exists()
    return f"[`{name}`](../errors/{code}.md)" if has_page else f"`{name}`"


def _kinds() -> Iterator[str]:
    found: dict[str, list[str]] = {"coroutines": [], "asynchronous generators": [], "plain methods": []}
    for name in METHODS:
        method = getattr(AsyncClient, name)
        if inspect.isasyncgenfunction(method):
            found["asynchronous generators"].append(name)
        else:
            kind = "coroutines" if inspect.iscoroutinefunction(method) else "plain methods"
            found[kind].append(name)
    for kind, names in found.items():
        yield f"| {kind} | {', '.join(f'`{name}`' for name in names)} |\n"


def raised_names() -> set[str]:
    """Return the errors of ours that the docstrings name, the ones that every method may raise included."""
    kinds: dict[type, list[str]] = {
        Client: METHODS,
        PendingCall: ["status", "cancel", "progress", "result"],
        Schedules: ["add", "pause", "remove"],
    }
    listed = {
        name
        for kind, methods in kinds.items()
        for method in methods
        for names, _ in entries(getattr(kind, method))
        for name in names
    }
    return {name for name in listed | {"BrokerUnreachableError"} if hasattr(errors, name)}


def _error_rows() -> Iterator[str]:
    for name in sorted(raised_names()):
        error = getattr(errors, name)
        yield f"| {_linked(name)} | `{error.code}` | {error.suggestion or ''} |\n"


def _code(annotation: Any) -> str:
    shown = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    shown = re.sub(r"[\w.]+\.(\w+)", r"\1", shown).replace("'", '"').replace("|", "\\|")
    return f"`{shown}`"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
