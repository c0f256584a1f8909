"""Wheels that tests install, or put on the path as they are."""

import zipfile
from collections.abc import Sequence
from pathlib import Path


def make_wheel(
    folder: Path, name: str, version: str, *, requires: Sequence[str] = (), text: str = ""
) -> Path:
    """Write the wheel of a package of one module, whose text is given; Python can also import from it."""
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    needed = "".join(f"Requires-Dist: {one}\n" for one in requires)
    files = {
        f"{name}.py": text,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, content in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(file, content)
    return wheel
