"""Is this machine set up: packages, a Redis binary, the state root, the bundle?"""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from broker_config.embedded import RedisBinaryNotFound, find_redis_server
from broker_config.settings import PREFIX, Settings
from goondan_tasks.bundle import Bundle, Finding
from goondan_tasks.cli.checks.check import Check
from goondan_tasks.spelling import closest

#: what the way of the data was measured and hardened with
CELERY = "5.7"

_PACKAGES = ("goondan-workers", "celery", "kombu", "redis", "flower")


def package_check() -> Check:
    """Check the versions that run here."""
    versions = {name: _version_of(name) for name in _PACKAGES}
    listed = ", ".join(f"{name} {number}" for name, number in versions.items())
    message = f"Python {platform.python_version()}, {listed}"
    if versions["celery"].startswith(f"{CELERY}."):
        return Check("packages", "ok", message)
    return Check("packages", "problem", message, f"Install Celery {CELERY}: pip install 'celery~={CELERY}.0'")


def embedded_redis_check() -> Check:
    """Check whether `goondan dev`, `goondan demo` and LocalStack find a Redis server to start."""
    try:
        return Check("embedded Redis", "ok", str(find_redis_server()))
    except RedisBinaryNotFound as error:
        return Check("embedded Redis", "warning", "no demo, no dev", str(error))


def settings_check(unread: Sequence[str], known: Sequence[str]) -> Check:
    """Check whether variables that look like settings are any: a misspelt one is as if it were not there."""
    if not unread:
        return Check("settings", "ok", "every GOONDAN_ variable is one")
    remedies = (_meant_setting(name, known) for name in unread)
    return Check("settings", "warning", f"not read: {', '.join(unread)}", " ".join(remedies))


def state_root_check(root: Path) -> Check:
    """Check whether a worker could write the state root, or make it."""
    nearest = next(place for place in (root, *root.parents) if place.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return Check(
            "state root", "ok", str(root) if nearest == root else f"{root} (made by the first worker)"
        )
    remedy = "Make it writable for the workers' user, or set GOONDAN_STATE_ROOT to another directory."
    return Check("state root", "problem", f"{nearest} cannot be written", remedy)


def bundle_check(path: Path | None, findings: Sequence[Finding]) -> Check:
    """Check the bundle by its findings."""
    if path is None:
        return Check("bundle", "ok", "none is set; producers go by what workers announce")
    errors = sum(finding.level == "error" for finding in findings)
    message = f"{path}: {errors} errors, {len(findings) - errors} warnings"
    remedy = f"goondan validate {path}"
    if errors:
        return Check("bundle", "problem", message, remedy)
    return Check("bundle", "warning", message, remedy) if findings else Check("bundle", "ok", str(path))


def oauth_key_check(settings: Settings, bundle: Bundle | None) -> list[Check]:
    """Check where the keys of the OAuth store come from, if the bundle has OAuthApps."""
    if bundle is None or not bundle.oauth_apps:
        return []
    if settings.oauth_key is not None:
        return [Check("OAuth key", "ok", "GOONDAN_OAUTH_KEY")]
    agents = bundle.agents_with_commands()
    readers = f", which commands of {', '.join(agents)} can read" if agents else ""
    remedy = "Set GOONDAN_OAUTH_KEY: docs/how-to/oauth.md says how to keep the key of the file."
    return [Check("OAuth key", "warning", f"the file {settings.oauth_key_path}{readers}", remedy)]


def _meant_setting(name: str, known: Sequence[str]) -> str:
    # without what all begin with, by which all would be alike
    meant = closest(name.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in known])
    return f"Remove {name}." if meant is None else f"Write {PREFIX}{meant} for {name}."


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"
