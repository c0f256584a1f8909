"""What a stack takes while nothing runs: keys and memory of Redis; memory, files and threads of processes."""

from dataclasses import dataclass
from pathlib import Path

from redis import Redis

_KIB = 1024


@dataclass(frozen=True, slots=True)
class ProcessFootprint:
    """One process: resident memory in bytes, open files, threads."""

    rss: int
    files: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> "ProcessFootprint":
        """Look at a process through ``/proc``."""
        place = Path(f"/proc/{pid}")
        fields = dict(line.split(":", 1) for line in (place / "status").read_text("ascii").splitlines())
        return cls(
            rss=int(fields["VmRSS"].split()[0]) * _KIB,
            files=len(list((place / "fd").iterdir())),
            threads=int(fields["Threads"]),
        )


@dataclass(frozen=True, slots=True)
class Footprint:
    """Redis (keys, bytes) and the processes that use it, by name."""

    keys: int
    redis_bytes: int
    processes: dict[str, ProcessFootprint]

    @classmethod
    def of(cls, redis: Redis, **pids: int) -> "Footprint":
        """Look at a Redis and at processes."""
        return cls(
            keys=int(redis.dbsize()),
            redis_bytes=kept_bytes(redis),
            processes={name: ProcessFootprint.of(pid) for name, pid in pids.items()},
        )

    def line(self) -> str:
        """Say it in one line."""
        processes = "; ".join(
            f"{name} {process.rss / _KIB**2:.1f} MiB, {process.files} files, {process.threads} threads"
            for name, process in self.processes.items()
        )
        return f"{self.keys} keys, Redis {self.redis_bytes / _KIB**2:.2f} MiB; {processes}"


def kept_bytes(redis: Redis) -> int:
    """Return the memory of a Redis but for what clients are sending: 32 KiB for each come and go."""
    with redis.pipeline(transaction=True) as pipe:  # at one moment
        pipe.info("memory")
        pipe.client_list()
        memory, clients = pipe.execute()
    return int(memory["used_memory"]) - sum(int(one["qbuf"]) + int(one["qbuf-free"]) for one in clients)
