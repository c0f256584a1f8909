"""JSON messages, unchanged: a worker reads what the producer wrote."""

from kombu import serialization
from kombu.utils.json import dumps as kombu_dumps

from broker_config import serializer


def use_plain_json() -> None:
    """Let this process read ``application/json`` messages as plain JSON. For worker processes only.

    kombu's own decoder turns ``{"__type__": …, "__value__": …}`` into other types and refuses
    unknown ones (kombu/utils/json.py), so a model's arguments could change or make a call vanish.
    """
    serialization.register("json", kombu_dumps, serializer.decode, "application/json", "utf-8")
