"""Scopes are restrictions: an export's are among its Tool's, and those among the OAuthApp's (002 §2.3)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.spelling import hint


@dataclass(frozen=True, slots=True)
class ScopeFault:
    """Scopes that are wider than what stands above them."""

    #: the export's place among its Tool's; ``None`` for the Tool's own scopes
    export: int | None
    error: FieldError


def scopes_beyond(wanted: Iterable[str], allowed: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes that are wanted and not allowed, each once, in order."""
    known = set(allowed)
    return tuple(dict.fromkeys(scope for scope in wanted if scope not in known))


def auth_scope_faults(
    app_scopes: Iterable[str],
    tool_scopes: Iterable[str] | None,
    export_scopes: Mapping[int, Iterable[str]],
    *,
    app: str,
    tool: str,
) -> Iterator[ScopeFault]:
    """Yield what is wrong with the ``auth.scopes`` of a Tool and of its exports, by the export's place.

    A Tool without scopes of its own (``None``) has the app's, and its exports may have none.
    """
    for scope in scopes_beyond(tool_scopes or (), app_scopes):
        yield ScopeFault(None, _fault(scope, app_scopes, f"OAuthApp/{app}"))
    for export, scopes in export_scopes.items():
        if tool_scopes is None:
            error = FieldError("an export's scopes need scopes of its Tool", "Add auth.scopes to the Tool.")
            yield ScopeFault(export, error)
            continue
        for scope in scopes_beyond(scopes, tool_scopes):
            yield ScopeFault(export, _fault(scope, tool_scopes, f"Tool/{tool}"))


def _fault(scope: str, allowed: Iterable[str], owner: str) -> FieldError:
    suggestion = hint(scope, sorted(set(allowed)), "Scopes are narrowed on the way down, never widened.")
    return FieldError(f"the scope '{scope[:80]}' is not among those of {owner}", suggestion)
