"""``auth`` of an older Tool and of its exports: an OAuthApp, and scopes that only narrow (002 §2.3)."""

from collections.abc import Iterator
from typing import Any

from goondan_tasks.bundle.declarations import Declaration
from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.bundle.oauth_scopes import auth_scope_faults
from goondan_tasks.bundle.refs import parse_ref
from goondan_tasks.bundle.scope import Scope
from goondan_tasks.json_values import Path
from goondan_tasks.schema_references import member

_AUTH: Path = ("spec", "auth")


def tool_auth_faults(tool: str, spec: Any, scope: Scope) -> Iterator[tuple[Path, FieldError]]:
    """Yield what is wrong with ``auth`` in a Tool's ``spec``, as YAML says it, and in its exports.

    What has not the form of a field has a finding of its own, and is passed over here.
    """
    auth, exports = member(spec, "auth"), member(spec, "exports")
    app: Declaration | None = None
    try:
        app = _app(member(auth, "oauthAppRef"), scope)
    except FieldError as error:
        yield (*_AUTH, "oauthAppRef"), error
    tool_scopes = _scopes(auth)
    narrowed = {
        index: scopes
        for index, export in enumerate(exports if isinstance(exports, list) else ())
        if (scopes := _scopes(member(export, "auth"))) is not None
    }
    # without an app there is nothing to lay the Tool's scopes beside
    allowed = tool_scopes if app is None else _scopes(app.value(("spec",)))
    app_name = app.name if app else ""
    for fault in auth_scope_faults(allowed or (), tool_scopes, narrowed, app=app_name, tool=tool):
        owner = _AUTH if fault.export is None else ("spec", "exports", fault.export, "auth")
        yield (*owner, "scopes"), fault.error


def _app(raw: Any, scope: Scope) -> Declaration | None:
    """Return the OAuthApp; ``None`` if there is no reference, or none that has a form.

    Raises:
        FieldError: it leads nowhere, or to another kind.
    """
    try:
        ref = None if raw is None else parse_ref(raw)
    except FieldError:
        return None
    return None if ref is None else scope.resolve(ref, "OAuthApp")


def _scopes(owner: Any) -> list[str] | None:
    scopes = member(owner, "scopes")
    if not isinstance(scopes, list):
        return None
    return [scope for scope in scopes if isinstance(scope, str) and scope]
