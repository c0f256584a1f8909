"""What tells a lane's processes where their Redis, their queues and their bundle are: the environment."""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

_REDIS_URL = "BENCH_REDIS_URL"
_QUEUES = "BENCH_QUEUES"

#: the folder that holds this package, for workers that run elsewhere
ROOT = Path(__file__).parents[1]


def environment(redis_url: str, queues: Sequence[str], bundle: Path, folder: Path) -> dict[str, str]:
    """Return a child's environment: this process's, without settings of ours that its user has."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("GOONDAN_")}
    return {
        **inherited,
        "PYTHONPATH": str(ROOT),
        _REDIS_URL: redis_url,
        _QUEUES: ",".join(queues),
        "RQ_REDIS_URL": redis_url,
        "GOONDAN_REDIS_URL": redis_url,
        "GOONDAN_BUNDLE": str(bundle),
        "GOONDAN_STATE_ROOT": str(folder / "state"),
        "GOONDAN_CACHE_DIR": str(folder / "cache"),
        "GOONDAN_LOG_LEVEL": "warning",
    }


def redis_url(**options: int) -> str:
    """Return the URL of the lane's own database; ``options`` are those of redis-py's connections."""
    return f"{os.environ[_REDIS_URL]}?{urlencode(options)}" if options else os.environ[_REDIS_URL]


def queues() -> list[str]:
    """Return the names of the lane's queues."""
    return os.environ[_QUEUES].split(",")
