"""Removed instances, and those that would be removed, for people."""

import sys
from collections.abc import Callable, Sequence

from goondan_tasks.cli.output import Output
from goondan_tasks.instances.housekeeping import InstanceRemoval

_FILES = {
    "here": None,
    "kept": "stay, other agents work there",
    "absent": "none here",
    "elsewhere": "not below this state root",
    "removed": "removed",
    "left": "not all could be removed",
}

#: the counter is renewed after so many removals
_STEP = 10


def show_plan(removals: Sequence[InstanceRemoval], output: Output) -> None:
    """Tell what would be removed, and from where; and what would not be, and why."""
    if output.as_json:
        return output.document([removal.to_wire() for removal in removals])
    rows = [
        (removal.instance_key, removal.workspace, ", ".join(removal.agents), _place(removal), removal.reason)
        for removal in removals
    ]
    return output.table(
        ("instance", "workspace", "agents", "files", "stays because"),
        rows,
        none="There is nothing to remove.",
    )


def show_removals(removals: Sequence[InstanceRemoval], output: Output) -> None:
    """Tell what became of instances."""
    if output.as_json:
        return output.document([removal.to_wire() for removal in removals])
    gone = [removal for removal in removals if removal.removed]
    for removal in removals:
        if removal.reason is not None or removal.files in {"absent", "elsewhere", "kept"}:
            output.note(_told(removal))
    return output.print(f"removed {len(gone)}")


def counter(total: int) -> Callable[[InstanceRemoval], None]:
    """Return what counts removals in one line, where a person sees it."""
    done = 0

    def count(removal: InstanceRemoval) -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty() and total > _STEP and (done % _STEP == 0 or done >= total):
            sys.stderr.write(f"{done:,} of {max(done, total):,}{chr(10) if done >= total else chr(13)}")
            sys.stderr.flush()

    return count


def _place(removal: InstanceRemoval) -> str:
    return removal.path if removal.files == "here" else _FILES[removal.files] or ""


def _told(removal: InstanceRemoval) -> str:
    name = repr(removal.instance_key) if removal.instance_key is not None else removal.path
    if not removal.removed:
        return f"instance {name} stays: {removal.reason}"
    place = f" ({removal.path})" if removal.files != "kept" else ""
    return f"files of instance {name}: {_FILES[removal.files]}{place}"
