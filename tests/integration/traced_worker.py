"""A worker that writes down which functions its leading thread calls.

Run it as ``python -m tests.integration.traced_worker FILE``. Whenever a result has been noted the names are
written to the file, one a line, the oldest first.
"""

import sys
import threading
from pathlib import Path
from types import FrameType

import workers.tasks  # noqa: F401 - what a worker imports
from goondan_tasks.celery import run_worker

AGENT = "smith"

ROOT = Path(__file__).parents[2]


class Tracer:
    """A profile function (``threading.setprofile``) for the threads that run calls."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._names: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call; on other threads too, for they might lead."""
        name = name_of(frame)
        if event == "call" and name and threading.current_thread().name.startswith("goondan-call"):
            self._names.append(name)
            if name.endswith(" CallPool._tell_short"):
                self._place.with_suffix(".new").write_text("\n".join(self._names), "utf-8")
                self._place.with_suffix(".new").replace(self._place)


def name_of(frame: FrameType) -> str:
    """Return file and function of the project's own code, else nothing."""
    path = Path(frame.f_code.co_filename)
    is_ours = path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / ".venv")
    return f"{path.relative_to(ROOT)} {frame.f_code.co_qualname}" if is_ours else ""


def main() -> None:
    """Trace a worker until it is told to stop."""
    threading.setprofile(Tracer(Path(sys.argv[1])))
    queues = [f"agent.{AGENT}", f"agent.{AGENT}.events"]
    run_worker(f"{AGENT}-traced@%h", queues, concurrency=2, log_level="info")


if __name__ == "__main__":
    main()
