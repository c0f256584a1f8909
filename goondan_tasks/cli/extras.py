"""What only some installations have."""

from collections.abc import Iterator
from contextlib import contextmanager

from goondan_tasks.errors import ConfigError


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import what an extra of the package brings, within a ``with`` block.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"{error.name or name} is not installed.",
            suggestion=f"Install the extra: pip install 'goondan-workers[{name}]'",
        ) from error
