"""The rules of the older version's resources beyond the types of their fields."""

from collections.abc import Iterator, Mapping

from goondan_tasks.bundle.declarations import Declaration
from goondan_tasks.bundle.findings import FieldError, Finding
from goondan_tasks.json_values import Path

#: what the older documents know and workers do not run, and what to do instead
_WITHOUT_EFFECT: Mapping[str, Mapping[Path, str]] = {
    "Agent": {("spec", "hooks"): "Write an Extension that registers with api.pipelines."},
    "Swarm": {
        ("spec", "policy", "liveConfig"): "Remove it: edit the bundle and restart, or use changesets.",
        ("spec", "policy", "retry"): "Remove it: set 'retry' on a Tool or an export.",
        ("spec", "policy", "timeout"): "Remove it: set 'timeoutSeconds' on a Tool or an export.",
        ("spec", "policy", "lifecycle", "autoPauseIdleSeconds"): "Remove it: an idle instance costs nothing.",
    },
}


def without_effect_findings(declaration: Declaration) -> Iterator[Finding]:
    """Yield a warning for each field of an older resource that is kept and not run."""
    for path, suggestion in _WITHOUT_EFFECT.get(declaration.kind, {}).items():
        if declaration.value(path) is not None:
            error = FieldError(f"'{path[-1]}' has no effect here", suggestion)
            yield declaration.finding(path, error, "warning")
