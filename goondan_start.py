"""The entry point of ``goondan``; it keeps other modules from hiding ours.

It is outside our packages, because if a user's own ``goondan_tasks`` is first on Python's path, none of our
code in it runs. It imports only modules that Python has already loaded.
"""

# ruff: noqa: PTH109, PTH118, PTH120 - pathlib may still be hidden
import importlib.util
import os
import sys

#: as :data:`goondan_tasks.cli.output.CONFIGURATION` and :class:`goondan_tasks.contract.errors.ConfigError`
_EXIT_CODE, _CODE = 3, "E_CONFIG_SCHEMA_INVALID"


def put_current_directory_last() -> None:
    """Keep files of the current directory, which may be a bundle's folder, from hiding modules.

    ``python -m goondan_tasks`` puts the directory first on the path. So does ``celery -A goondan_tasks`` for
    each import, unless the directory is on the path already, and afterwards removes one entry
    (celery/utils/imports.py, ``cwd_in_path``). The paths of other programs are not changed.
    """
    words = sys.orig_argv
    # while `python -m` looks for the module, sys.argv[0] is "-m"
    module = words[words.index("-m") + 1] if sys.argv[:1] == ["-m"] and "-m" in words else ""
    is_celerys = "celery.bin.celery" in sys.modules and any("goondan_tasks" in word for word in words)
    if not module.startswith("goondan_tasks") and not is_celerys:
        return
    try:
        here = os.getcwd()
    except FileNotFoundError:  # it was removed
        return
    if sys.path[0] == here:
        sys.path[:] = [*sys.path[1:], here, here]


def clash(*packages: str) -> tuple[str, str] | None:
    """Return what hides one of our packages and what to do about it; no package is imported."""
    ours = os.path.dirname(os.path.realpath(__file__))
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None:
            continue
        place = os.path.realpath(next(iter(spec.submodule_search_locations or [spec.origin or name])))
        if place != os.path.join(ours, name):
            return (
                f"{place} hides the package {name!r} of Goondan Workers, which is in {ours}.",
                f"Rename it, or take {os.path.dirname(place)} off Python's path: it is there because of "
                "PYTHONPATH, or as the folder of the program that was started, which `python -P` leaves out.",
            )
    return None


def require_ours(*packages: str) -> None:
    """Raise ImportError if another module hides one of these packages."""
    found = clash(*packages)
    if found is not None:
        raise ImportError(" ".join(found))


def main() -> None:
    """Run the command line, unless another package hides ours."""
    found = clash("broker_config", "goondan_tasks", "goondan_web", "workers")
    if found is None:
        from goondan_tasks.cli import main as run

        run()
        return
    message, remedy = found
    if "--json" in sys.argv[1:]:
        import json

        told = {"code": _CODE, "message": message, "suggestion": remedy}
        sys.stdout.write(json.dumps({"error": told}, indent=2) + "\n")
    else:
        sys.stderr.write(f"Error: {message}\nWhat to do: {remedy}\n")
    sys.exit(_EXIT_CODE)
