"""What machine a run was made on."""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("celery", "dramatiq", "huey", "rq", "taskiq", "taskiq-redis", "redis", "hiredis")

#: above this share of the processors, other programs are in the way
BUSY_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, its software, and how busy it was before the run."""

    processor: str
    processors: int
    memory_bytes: int
    system: str
    python: str
    redis: str
    packages: tuple[str, ...]
    #: processes that ran or waited to run, averaged over the minute before
    load: float

    @property
    def is_busy(self) -> bool:
        """Whether other programs were at work before the run began."""
        return self.load > BUSY_SHARE * self.processors

    def lines(self) -> list[str]:
        """Describe the machine in Markdown."""
        busy = (
            "**The machine was busy with other programs: read only large differences.**"
            if self.is_busy
            else "Nothing else to speak of was running."
        )
        return [
            f"- {self.processor}, {self.processors} processors, {self.memory_bytes / 2**30:.0f} GiB",
            f"- {self.system}, Python {self.python}, Redis {self.redis} on loopback with an append-only file",
            f"- {', '.join(self.packages)}",
            f"- load average of the minute before: {self.load:.2f}. {busy}",
        ]


def this_machine(redis_version: str) -> Machine:
    """Look at this machine."""
    return Machine(
        processor=_processor(),
        processors=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        redis=redis_version,
        packages=tuple(f"{name} {found}" for name in PACKAGES if (found := _version(name))),
        load=os.getloadavg()[0],
    )


def _processor() -> str:
    details = Path("/proc/cpuinfo")
    if details.exists():
        for line in details.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
