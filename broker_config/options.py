"""Celery's configuration and queues, from the settings."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from broker_config.queues import call_queue, events_queue
from broker_config.sentinel_url import SentinelUrl
from broker_config.settings import REDIS_SCHEMES, Settings

if TYPE_CHECKING:
    from kombu import Queue

#: how many calls a worker runs at once by default
CONCURRENCY = 8

_TRANSPORT_OPTIONS = {
    "priority_steps": [0],
    "socket_timeout": 15,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
    "health_check_interval": 10,
}

_DATABASE = re.compile(r"(?:^|&)db=([0-9]+)")


def celery_url(url: str) -> str:
    """Convert a Redis URL to the form that Celery, kombu and Flower expect.

    For them, a unix socket is ``redis+socket://``, and ``rediss://`` must say how the certificate is checked
    (celery/backends/redis.py); it is always verified unless the URL says otherwise. They ignore redis-py's
    option ``db``, so that messages would go to one database and be awaited in another. Of Sentinels, they
    take one URL each; the rest of our URL is in :func:`transport_options` and :func:`tls`.
    """
    if SentinelUrl.is_one(url):
        return _celery_url_of_sentinels(SentinelUrl.parse(url))
    parts = urlsplit(url)
    if parts.scheme not in REDIS_SCHEMES:
        return url
    database = _DATABASE.search(parts.query)
    options = [option for option in parts.query.split("&") if option and not option.startswith("db=")]
    address = url.partition("?")[0]
    if parts.scheme == "unix":
        address = address.replace("unix://", "redis+socket://", 1)
        options += [f"virtual_host={database[1]}"] if database else []
    elif database:
        address = f"{parts.scheme}://{parts.netloc}/{database[1]}"
    if parts.scheme == "rediss" and "ssl_cert_reqs" not in parts.query:
        options.append("ssl_cert_reqs=required")
    return f"{address}?{'&'.join(options)}" if options else address


def _celery_url_of_sentinels(url: SentinelUrl) -> str:
    places = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in url.sentinels)
    return ";".join(f"sentinel://{url.login}{place}/{url.database}" for place in places)


def transport_options(url: str) -> dict[str, Any]:
    """Return the options that kombu needs besides :func:`celery_url`."""
    if not SentinelUrl.is_one(url):
        return {}
    from broker_config.sentinel import sentinel_settings  # few need it

    parsed = SentinelUrl.parse(url)
    return {"master_name": parsed.service, "sentinel_kwargs": sentinel_settings(parsed)}


def tls(url: str) -> dict[str, Any] | None:
    """Return what ``broker_use_ssl`` must be: that of other URLs stands in :func:`celery_url`."""
    if not SentinelUrl.is_one(url) or not (parsed := SentinelUrl.parse(url)).is_encrypted:
        return None
    from broker_config.sentinel import tls_options  # few need it

    return tls_options(parsed)


def declared_queues(agent_names: Iterable[str]) -> "tuple[Queue, ...]":
    """Declare all queues of the agents, so that Flower also lists idle ones.

    The anonymous exchange routes by queue name and leaves no bindings in Redis.
    """
    from kombu import Exchange, Queue  # not needed by commands that send no messages

    names = [name for agent in agent_names for name in (call_queue(agent), events_queue(agent))]
    return tuple(Queue(name, exchange=Exchange(""), routing_key=name) for name in names)


def celery_options(settings: Settings, agent_names: Iterable[str]) -> dict[str, Any]:
    """Return Celery's configuration for producers, workers and Flower."""
    url = celery_url(settings.redis_url)
    return {
        "broker_url": url,
        "broker_use_ssl": tls(settings.redis_url),
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,  # restarting the worker would not end an outage
        "broker_transport_options": {**_TRANSPORT_OPTIONS, **transport_options(settings.redis_url)},
        "result_backend": url,
        "redis_backend_use_ssl": tls(settings.redis_url),
        "result_backend_transport_options": transport_options(settings.redis_url),
        "result_expires": settings.result_ttl_seconds,
        "include": ["workers.tasks", "workers.lifecycle"],
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_queues": declared_queues(agent_names),
        "task_acks_late": True,
        "task_ignore_result": True,  # the ledger writes the result record itself, fenced
        "task_send_sent_event": False,
        "worker_send_task_events": settings.events == "on",
        "worker_pool": "workers.worker_pool:WorkerPool",
        "worker_consumer": "workers.pool.consumer:Consumer",
        "worker_concurrency": CONCURRENCY,
        "worker_prefetch_multiplier": 1,  # as many as the lead takes
        "worker_enable_prefetch_count_reduction": False,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,  # handlers may print a lot
    }
