"""Where ``goondan`` starts, and what keeps other modules from the place of ours.

It stands outside of our packages: where a user's own ``goondan_tasks`` is first on Python's path, nothing in
ours runs. What it imports Python has loaded before.
"""

# ruff: noqa: PTH109, PTH118, PTH120 - pathlib may still be hidden
import importlib.util
import os
import sys

#: as :data:`goondan_tasks.cli.output.CONFIGURATION` and :class:`goondan_tasks.errors.ConfigError`
_EXIT_CODE, _CODE = 3, "E_CONFIG_SCHEMA_INVALID"


def put_current_directory_last() -> None:
    """Let the files of the current directory, which may be a bundle's folder, hide no module.

    It is first on the path of ``python -m goondan_tasks``. ``celery -A goondan_tasks`` puts it there too, for
    each import, unless it is on the path already (celery/utils/imports.py, ``cwd_in_path``), and takes one
    away after that. No other program's path is changed.
    """
    words = sys.orig_argv
    # while `python -m` looks for the module, that is what the program is called
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
    """Return what hides one of these packages of ours, and what to do about it; none of them is run."""
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
    """Raise ImportError if something hides one of these packages."""
    found = clash(*packages)
    if found is not None:
        raise ImportError(" ".join(found))


def main() -> None:
    """Run the command line, unless it would not be ours that runs."""
    found = clash("broker_config", "goondan_tasks", "workers")
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
