"""What can happen to a Redis. Each fault takes about ``seconds``, and is over when it returns."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable

from broker_config.connections import connect
from broker_config.embedded import HOST, EmbeddedRedis

Fault = Callable[[EmbeddedRedis, float], None]


def restart(server: EmbeddedRedis, seconds: float) -> None:
    """End the server in order and start it again: everything comes back from its append-only file."""
    server.process.terminate()
    server.process.wait(30)
    _stay_away(seconds)
    server.launch()


def replace(server: EmbeddedRedis, seconds: float) -> None:
    """Do the same, and let another program have the port meanwhile, which ends each connection at once."""
    server.process.terminate()
    server.process.wait(30)
    with socket.create_server((HOST, server.port)) as listener:
        listener.settimeout(0.1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                listener.accept()[0].close()
    server.launch()


def kill(server: EmbeddedRedis, seconds: float) -> None:
    """Kill the server with -9, after it was told to write every change to disk before it answers."""
    with connect(server.url) as redis:
        redis.config_set("appendfsync", "always")
    _stay_away(1)  # what came before may still wait for the second's write
    server.process.kill()
    server.process.wait(30)
    _stay_away(min(seconds, 10))
    server.launch()


def freeze(server: EmbeddedRedis, seconds: float) -> None:
    """Let the server not answer, with all its connections open."""
    os.kill(server.process.pid, signal.SIGSTOP)
    _stay_away(seconds)
    os.kill(server.process.pid, signal.SIGCONT)


def cut_connections(server: EmbeddedRedis, seconds: float) -> None:
    """Kill every connection, normal ones and subscriptions, twice a second."""
    end = time.monotonic() + min(seconds, 10)
    with connect(server.url) as redis:
        while time.monotonic() < end:
            for kind in ("normal", "pubsub"):
                redis.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
            _stay_away(0.5)


def demote(server: EmbeddedRedis, seconds: float) -> None:
    """Let the server be a replica, as an old master is after a failover, and then a master again."""
    with connect(server.url) as redis:
        redis.replicaof("127.0.0.1", 1)
        _stay_away(seconds)
        redis.replicaof("NO", "ONE")


def fill_memory(server: EmbeddedRedis, seconds: float) -> None:
    """Let the server refuse every write that needs memory (``noeviction``), then free it."""
    with connect(server.url) as redis:
        redis.config_set("maxmemory", 1)
        _stay_away(seconds)
        redis.config_set("maxmemory", 0)


def _stay_away(seconds: float) -> None:
    threading.Event().wait(seconds)
