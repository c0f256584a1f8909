"""Work on a thread beside a ``with`` block."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(work: Callable[[threading.Event], object], name: str, patience: float) -> Iterator[None]:
    """Run ``work`` on a thread during a ``with`` block; the event it gets says that the block is over.

    It must end within ``patience`` seconds after that.
    """
    is_over = threading.Event()
    thread = threading.Thread(target=work, args=(is_over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(patience)
    assert not thread.is_alive(), f"{name} has not ended"
