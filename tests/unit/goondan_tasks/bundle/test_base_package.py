"""The built-in package."""

from goondan_tasks.bundle import inspect_bundle
from goondan_tasks.bundle.binding import base_package_root


def test_built_in_package_stands_beside_workers() -> None:
    root = base_package_root()

    assert root is not None
    assert (root.parent.name, root.name) == ("workers", "builtin")


def test_built_in_package_is_valid_bundle() -> None:
    root = base_package_root()
    assert root is not None

    bundle, findings = inspect_bundle(root)

    assert findings == []
    assert bundle is not None
    assert {"bash", "file-system", "http-fetch", "json-query", "text-transform", "wait"} <= set(bundle.tools)
